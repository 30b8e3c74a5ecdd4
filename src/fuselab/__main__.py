"""Entry point of `fuselab`; says how to get the lab where only the library is installed."""

from __future__ import annotations

import signal
import sys
from types import FrameType

from fuselab.command_line import streams

LAB_PACKAGES = ("click", "rich", "jinja2", "matplotlib", "numpy")
USAGE = 2
INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit with its code."""
    streams.prepare()
    heard: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        signal.default_int_handler(number, frame)

    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, interrupt)
        # A batch system's polite end is an interruption like Ctrl-C.
        signal.signal(signal.SIGTERM, interrupt)
        code = _command()
    except KeyboardInterrupt:  # before the command line could catch it, or while it was doing so
        code = INTERRUPTED
    if heard:  # a library may have made another error of it, or none
        code = INTERRUPTED
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
    sys.exit(code)


def _command() -> int:
    try:
        from fuselab.command_line.cli import command
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in LAB_PACKAGES:
            raise
        print(
            f"fuselab needs {error.name}, which is not installed: pip install 'fuseline[lab]'",
            file=sys.stderr,
        )
        return USAGE
    return command()


if __name__ == "__main__":
    main()
