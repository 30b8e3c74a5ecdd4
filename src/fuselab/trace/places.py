"""Where torch's sources define an ATen operator: two files of entries that ship with torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

NATIVE = "ATen/native/native_functions.yaml"
DERIVATIVES = "autograd/derivatives.yaml"
_FIELD = {NATIVE: "- func: ", DERIVATIVES: "- name: "}


_REST = {
    "CompositeImplicitAutograd": "; for the others it decomposes",
    "CompositeExplicitAutograd": "; one for the others",
    "CompositeExplicitAutogradNonFunctional": "; one for the others",
}


@dataclass(frozen=True)
class Entry:
    """An operator's entry: the file within torchgen/packaged, its first line, its text."""

    file: str
    line: int
    text: str


def entries(op: str) -> list[Entry]:
    """Return the entries of "aten::mm" ("aten::add.Tensor");
    none for operators that are not ATen's.
    """
    namespace, _, name = op.partition("::")
    if namespace != "aten":
        return []
    return [found for file in _FIELD if (found := _entries(file).get(name))]


def makes(op: str) -> str:
    """Return how an ATen operator is made: structured, composite, a kernel a backend."""
    for entry in entries(op):
        if entry.file == NATIVE:
            return _made(entry.text)
    return ""


def _made(text: str) -> str:
    if "structured_delegate:" in text:
        return "structured: shape and type from the overload that it delegates to"
    if "structured: True" in text:
        return "structured: one meta function for all backends"
    keys = _dispatched(text)
    backends = [key for key in keys if not key.startswith("Composite")]
    composite = next((key for key in keys if key.startswith("Composite")), "")
    if backends:
        return f"a kernel each for {', '.join(backends)}{_REST.get(composite, '')}"
    if composite.startswith("CompositeExplicit"):
        return (
            "composite, with explicit autograd: one kernel for all backends, a gradient of its own"
        )
    return "composite, with implicit autograd: decomposes into operators that have the gradients"


def _dispatched(text: str) -> list[str]:
    """Return the keys of an entry's dispatch table."""
    rows = text.partition("  dispatch:\n")[2].splitlines()
    table = takewhile(lambda row: row.startswith("    "), rows)
    return [key for row in table for key in row.partition(":")[0].strip().split(", ")]


@cache
def _entries(file: str) -> dict[str, Entry]:
    field, found = _FIELD[file], {}
    lines = _packaged(file).read_text(encoding="utf-8").splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("- ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        if lines[start].startswith(field):
            name = lines[start].removeprefix(field).partition("(")[0]
            block = [line for line in lines[start:end] if line and not line.startswith("#")]
            found[name] = Entry(file, start + 1, "\n".join(block))
    return found


def _packaged(file: str) -> Path:
    spec = find_spec("torchgen")
    if spec is None or not spec.origin:
        raise FileNotFoundError(f"torchgen/packaged/{file}: torchgen is not installed beside torch")
    return Path(spec.origin).parent / "packaged" / file
