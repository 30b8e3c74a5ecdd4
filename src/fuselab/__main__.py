"""Entry point of `fuselab`; says how to get the lab where only the library is installed."""

from __future__ import annotations

import signal
import sys

LAB_PACKAGES = ("click", "rich", "jinja2", "matplotlib", "numpy")
USAGE = 2


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        from fuselab.cli import command
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in LAB_PACKAGES:
            raise
        print(
            f"fuselab needs {error.name}, which is not installed: pip install 'fuseline[lab]'",
            file=sys.stderr,
        )
        sys.exit(USAGE)
    # A batch system's polite end is an interruption like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(command())


if __name__ == "__main__":
    main()
