"""Which kernel a row gets: docs/regimes.md, computed by asking the CUDA launches without a GPU.

    python tools/regimes.py            print the page
    python tools/regimes.py --write    write it

Compiles tests/cuda_on_cpu/regimes.cpp with a C++ compiler and the headers of CUDA.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from cuda_on_cpu.sources import CUDA, CXX, HERE, copy_headers, for_a_cpu

PAGE = Path(__file__).parents[1] / "docs" / "regimes.md"
ALONG_ANY = ("softmax", "log_softmax", "double_softmax", "softmax_backward", "sum + amax",
             "sum + cos")  # fmt: skip
OPERATORS = (*ALONG_ANY, "masked_softmax", "layer_norm", "rms_norm", "add_rms_norm", "norm_chain")
SIZES = (2, 4, 8)  # bytes of an element: bf16 or fp16, fp32, fp64
ROWS = (1, 16, 4096)
MODELS = (30522, 50257, 151655, 1_000_000)
# All short ones; beyond them every remainder by 16 bytes, and what lies around powers of two.
LENGTHS = sorted(
    {*range(1, 1025), *range(1025, 5001, 7), *MODELS}
    | {(1 << p) * q // 4 + d for p in range(10, 26) for q in range(4, 8) for d in range(-8, 9)}
)
PLACES = {
    "warp": "registers of a warp or less",
    "block": "registers of a block",
    "cluster": "registers of a cluster",
    "long": "shared memory of a cluster",
    "grid long": "the same, or of a grid where rows are few",
    "grid": "shared memory of a grid",
    "again": "memory, read again",
}
HELD = [place for place in PLACES if place != "again"]
HEAD = """# Regimes: which kernel a row gets

On CUDA the softmaxes, the norms and the horizontal reductions share the kernels of `row_cuda.cuh`.
A **regime** is a kernel and how it divides a row: elements that a thread holds, threads of a row,
blocks of a cluster. The operator, the size of an element and the length of the row choose it.
Whether 16 bytes divide the addresses, and how many rows there are, decide only how elements are
read and which blocks have them. The order of a row's sums stays the same, so on one model of GPU
its result depends on its elements and its length alone. Short rows whose elements lie apart are
read so by `row_apart_kernel`, with the threads and sums of `row_short_kernel`; others are copied
first.

Computed by the code that launches the kernels, as if for a GPU of 132 multiprocessors with 227 KB
of shared memory a block (H100, H200) that holds every cluster it is asked about. That needs no GPU:
`python tools/regimes.py --write`; `tests/cuda_on_cpu/test_regimes.py` compares. Not here: the
gradients of the norms and of the horizontal reductions, and rms_norm_fp8. Reasons: decisions
[0005](decisions/0005-the-fusion-suite.md), [0015](decisions/0015-rows-from-any-address.md) and
[0017](decisions/0017-one-row-engine.md).

## Kernels

Aligned: 16 bytes divide a row's length, its address and its stride. Few rows: up to 8.

"""
WHOLE = """
## Rows whose length 16 bytes divide

The first number is the longest row; bytes are an element's.

- `16384: 64-512 × 32`: a row has 64 to 512 threads, as few as hold it, with 32 elements each.
- `65536: 4-8 × 256 × 32`: the same in clusters of 4 to 8 blocks of 256 threads. \\*: many aligned
  rows have persistent clusters (`row_stream_kernel`).
- `524280: 4-16 pieces`: a row consists of pieces, which the blocks of a cluster share: as few as
  hold it, or one a piece where rows are few.
- `1702272: 64-208 pieces`: the same of 16 blocks, or of a grid's where rows are few or all of them
  are done in fewer turns.

Longer rows are read again for each sum.

"""
RAGGED = """
## Other rows

By the kernels of the right column above, wherever they begin.

"""
COLUMNS = """
## Columns

Along another dimension than the last, `column_kernel` holds a column in registers of a block.
`column_slice_kernel` divides a longer one into slices: a launch for each sum leaves what blocks
have of it in memory, and another writes. How many columns there are and where rows begin changes
nothing about a column's sums, only how many columns a block has and an access reads.

"""


@dataclass(frozen=True, eq=False)  # parsed() makes one of each
class Regime:
    """A kernel, how it divides a row, and all that the order of the row's sums depends on."""

    kernel: str
    place: str
    sums: tuple[Any, ...]
    threads: int  # of a block, that work on one row
    elements: int = 0  # of a row, that a thread has in registers
    blocks: int = 1  # of a cluster
    pieces: int = 0  # of a row in shared memory, of so many elements
    piece: int = 0


def _names_only(text: str) -> str:
    body = r"\1{ regimes::kernel = __PRETTY_FUNCTION__; }"
    text = re.sub(r"(__global__ void[^{;]*)\{.*?\n\}", body, text, flags=re.DOTALL)
    return for_a_cpu(text).replace("emulator::on(", "regimes::on(")


@cache
def library() -> ctypes.CDLL:
    if not CXX or CUDA is None:
        sys.exit("needs a C++ compiler and the headers of CUDA (CUDA_HOME)")
    with tempfile.TemporaryDirectory() as folder:
        copy_headers(Path(folder), _names_only)
        command = [CXX, "-std=c++17", "-O0", "-w", "-shared", "-fPIC", f"-I{folder}", f"-I{HERE}"]
        command += ["-isystem", CUDA / "include", HERE / "regimes.cpp", "-o", f"{folder}/regimes"]
        subprocess.run(command, check=True)
        found = ctypes.CDLL(f"{folder}/regimes")
    found.kernels_of.restype = ctypes.c_char_p
    return found


@cache
def parsed(said: str) -> Regime:
    """What regimes.cpp says of one launch."""
    has = {name: int(value) for name, value in re.findall(r"(\w+)=(-?\d+)", said)}
    (kernel,) = re.findall(r"(\w+_kernel)\(", said)
    types = dict(re.findall(r"(\w+) = (.*?)[;\]]", said))
    op, threads, blocks = types["Op"], has["threads"], has["blocks"]
    if kernel.startswith("column"):
        depth, items, slices = has["depth"], int(types["ITEMS"]), has.get("pieces", 0)
        sums = (op, items, depth, has["together"], slices, has.get("piece"))
        place = "slices" if slices else "block"
        return Regime(kernel, place, sums, depth, items, 1, slices, has.get("piece", 0))
    if "pieces" in has:
        held = types.get("HELD") != "false"
        place = ("grid" if "grid" in kernel else "long") if held else "again"
        pieces = has["pieces"], has["piece"]
        sums = (op, types["VEC"], threads, held, *pieces)
        return Regime(kernel, place, sums, threads, 0, blocks, *pieces)
    vec, items, is_block, most = re.findall(r"\w+", types["Shape"])[1:5]
    sums, elements = (op, vec, items, is_block, most, has["number"]), int(vec) * int(items)
    if kernel in ("row_cluster_kernel", "row_stream_kernel"):
        return Regime(kernel, "cluster", (*sums, blocks), threads, elements, blocks)
    sums = (*sums, types.get("SPREAD", "false"))
    return Regime(
        kernel, "block" if is_block == "true" else "warp", sums, 1 << has["number"], elements
    )


def one(
    op: str, size: int, n: int, rows: int, aligned: bool = True, columns: bool = False
) -> Regime:
    """Of rows, or columns, of n elements; raises unless all launches are of one kernel."""
    numbers = map(ctypes.c_int64, (size, columns, rows, n, aligned))
    (line,) = set(library().kernels_of(op.encode(), *numbers).decode().splitlines())
    return parsed(line)


@cache
def regimes(op: str, size: int, n: int, columns: bool = False) -> dict[tuple[int, bool], Regime]:
    """Those of rows, or columns, of n elements, by how many and whether they are aligned."""
    numbers = ROWS[columns:]  # a single column has no aligned neighbour
    return {(k, a): one(op, size, n, k, a, columns) for k, a in product(numbers, (True, False))}


@dataclass
class Run:
    """Lengths up to `last` whose rows are in one place, with as many elements a thread."""

    last: int
    place: str
    regimes: set[Regime]

    def span(self, name: str) -> str:
        values = {getattr(r, name) for r in self.regimes}
        return "-".join(str(v) for v in sorted({min(values), max(values)}))

    def __str__(self) -> str:
        if self.place in ("warp", "block"):
            return f"{self.last}: {self.span('threads')} × {self.span('elements')}"
        if self.place == "cluster":
            star = r"\*" if any(r.kernel == "row_stream_kernel" for r in self.regimes) else ""
            parts = (self.span(name) for name in ("blocks", "threads", "elements"))
            return f"{self.last}: {' × '.join(parts)}{star}"
        return f"{self.last}: {self.span('pieces')} pieces"


def place_of(some: set[Regime]) -> str:
    return " ".join(sorted({r.place for r in some}))


# The length below n, or n itself, of those that 16 bytes divide, and of those that they do not.
def whole(n: int, vec: int) -> int:
    return n - n % vec


def ragged(n: int, vec: int) -> int:
    return n - (n % vec == 0)


def runs(found: Callable[[int], set[Regime]], among: Callable[[int], int]) -> list[Run]:
    """Fold lengths into runs, whose ends are found by bisection."""

    @cache
    def key(n: int) -> tuple[str, frozenset[int]]:
        return place_of(found(n)), frozenset(r.elements for r in found(n))

    def with_ends(low: int, high: int) -> Iterator[int]:
        middle = among((low + high + 1) // 2)
        if low < middle < high and key(low) != key(high):
            yield from with_ends(low, middle)
            low = middle
            yield from with_ends(middle, high)
        else:
            yield from (low, high)

    lengths = sorted({among(n) for n in LENGTHS} - {0})
    lengths = sorted({n for pair in pairwise(lengths) for n in with_ends(*pair)})
    made: list[Run] = []
    for n in lengths:
        if not made or key(made[-1].last) != key(n):
            made.append(Run(n, place_of(found(n)), set()))
        made[-1].last = n
        made[-1].regimes |= found(n)
    return made


def table(
    head: list[str], operators: tuple[str, ...], cells: Callable[[str, int], list[str]]
) -> str:
    """A line for each operator and size, operators with the same cells in one."""
    same: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for size, op in product(SIZES, operators):
        same[(size, *cells(op, size))].append(op)
    lines = [["operators", "bytes", *head]]
    lines += [["---"] * len(lines[0])]
    lines += [[", ".join(names), *map(str, key)] for key, names in same.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def row_cells(among: Callable[[int, int], int]) -> Callable[[str, int], list[str]]:
    def cells(op: str, size: int) -> list[str]:
        found = runs(lambda n: set(regimes(op, size, n).values()), lambda n: among(n, 16 // size))
        return ["<br>".join(str(r) for r in found if r.place == place) for place in HELD]

    return cells


def column_cells(op: str, size: int) -> list[str]:
    found = runs(lambda n: set(regimes(op, size, n, columns=True).values()), lambda n: n)
    return ["<br>".join(str(r) for r in found if r.place == "block")]


def kernels() -> str:
    """The table of what kernels there are for rows in each place."""
    used = {place: {True: set[str](), False: set[str]()} for place in PLACES}
    for op, size, n in product(OPERATORS, SIZES, LENGTHS):
        found = regimes(op, size, n)
        place = place_of(set(found.values()))
        for (_, aligned), regime in found.items():
            used[place][aligned and n * size % 16 == 0].add(f"`{regime.kernel}`")
    lines = ["| a row is held in | aligned | other rows |", "| --- | --- | --- |"]
    for place, names in used.items():
        both = (", ".join(sorted(names[aligned])) for aligned in (True, False))
        lines.append(f"| {PLACES[place]} | {' | '.join(both)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the text of docs/regimes.md."""
    heads = [PLACES[place] for place in HELD]
    parts = [HEAD, kernels(), WHOLE, table(heads, OPERATORS, row_cells(whole))]
    parts += [RAGGED, table(heads, OPERATORS, row_cells(ragged))]
    parts += [COLUMNS, table(["registers of a block"], ALONG_ANY, column_cells)]
    return "".join(parts)


if __name__ == "__main__":
    text = page()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
