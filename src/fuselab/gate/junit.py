"""A comparison as JUnit's XML, in which each cell is a test."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree

from fuselab.gate.verdicts import told
from fuselab.output.plain import plain
from fuselab.statistics.comparison import Comparison, Verdict


def to_xml(cells: Sequence[Comparison], name: str) -> str:
    """Return a suite of a test each cell: slower fails, unknown is skipped with its reason.

    A test's time is B's median, in seconds.
    """
    failed = sum(cell.verdict is Verdict.SLOWER for cell in cells)
    skipped = sum(cell.verdict is Verdict.UNKNOWN for cell in cells)
    counts = {"tests": len(cells), "failures": failed, "errors": 0, "skipped": skipped}
    root = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": plain(name), **{k: str(v) for k, v in counts.items()}}
    )
    for cell in cells:
        _add(suite, cell)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _add(suite: ElementTree.Element, cell: Comparison) -> None:
    impl = cell.impl_b if cell.impl_a == cell.impl_b else f"{cell.impl_a} to {cell.impl_b}"
    known = {
        "classname": f"{cell.op}.{cell.direction}",
        "name": f"{cell.case} {cell.dtype} {cell.layout} {impl} {cell.device}",
        **({"time": f"{cell.b_us / 1e6:.9f}"} if cell.b_us is not None else {}),
    }
    test = ElementTree.SubElement(suite, "testcase", {k: plain(v) for k, v in known.items()})
    kinds = {Verdict.SLOWER: "failure", Verdict.UNKNOWN: "skipped"}
    if kind := kinds.get(cell.verdict):
        ElementTree.SubElement(test, kind, {"message": plain(told(cell))})
