"""What a failed assertion says; no torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fuselab.fusion.record import COMPILED, EAGER, EXTERN, Fusion, Kernel
from fuselab.fusion.terms import Verdict

LINES = 40


def text(found: Fusion, verdicts: Sequence[Verdict]) -> str:
    """Return the numbers seen and allowed, the kernels, and why they are not fewer."""
    missed = [v for v in verdicts if not v.holds]
    head = ", ".join(f"{v.term} {v.seen} (expected {v.allowed})" for v in missed)
    blocks = [
        [f"{found.name}: {head}"],
        list(_table(verdicts)),
        list(_bytes(found)),
        _block("kernels", map(_kernel, range(1, len(found.kernels) + 1), found.kernels)),
    ]
    if found.planned != found.kernels:
        numbered = map(_kernel, range(1, len(found.planned) + 1), found.planned)
        blocks.append(_block("operations that torch accounts for", numbered))
    blocks += [
        _block("not fused", _reasons(found)),
        _block("graph breaks", found.breaks),
        _block("recompiled", found.recompiles),
    ]
    return "\n\n".join("\n".join(lines) for lines in blocks if lines)


def _table(verdicts: Iterable[Verdict]) -> Iterator[str]:
    yield f"  {'':12}{'seen':16}expected"
    for v in verdicts:
        if v.asked:
            yield f"{' ' if v.holds else '>'} {v.term:12}{v.seen:16}{v.allowed}"


def _bytes(found: Fusion) -> Iterator[str]:
    if found.moved is None:
        yield f"  traffic was not measured: {found.unmeasured}; traffic=None leaves the term out"
    else:
        yield f"  {found.moved:,} bytes moved, {found.least:,} at least"
    if found.peak is not None:
        yield f"  {found.peak:,} bytes allocated at once, {found.outputs:,} of results"


def _block(title: str, lines: Iterable[str]) -> list[str]:
    """Return a title and its lines, cut off where there are too many; nothing without lines."""
    held = list(lines)
    left = len(held) - LINES
    more = [f"  ... and {left} more"] if left > 0 else []
    return [f"{title}:", *(f"  {line}" for line in held[:LINES]), *more] if held else []


def _kernel(number: int, kernel: Kernel) -> str:
    parts = [f"{number}. {kernel.name}", kernel.maker]
    if kernel.read is not None and kernel.written is not None:
        parts.append(f"reads {kernel.read:,} and writes {kernel.written:,} bytes")
    parts += [f"loops {kernel.loops}"] if kernel.loops else []
    parts += [kernel.place] if kernel.place else []
    return " | ".join(parts)


def _reasons(found: Fusion) -> Iterator[str]:
    if len(found.planned) < 2:
        return
    for pair in found.unfused:
        first, second = (f"{i + 1}. {found.planned[i].name}" for i in (pair.first, pair.second))
        yield f"{first} with {second}: {pair.reason}"
    told = {i for pair in found.unfused for i in (pair.first, pair.second)}
    for i, kernel in enumerate(found.planned):
        if kernel.maker == EXTERN:
            yield f"{i + 1}. {kernel.name}: called as it is, Inductor generates no code for it"
        elif kernel.maker == COMPILED and i not in told:
            yield f"{i + 1}. {kernel.name}: the scheduler had no kernel of its graph to try it with"
    if any(kernel.maker == EAGER for kernel in found.planned):
        yield _eager(found)


def _eager(found: Fusion) -> str:
    if found.graphs:
        return "eager operators run outside of the compiled graphs, each a kernel of its own"
    return "no compiled graph ran: each operator is a kernel of its own"
