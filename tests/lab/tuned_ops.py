"""An operator with launch parameters, on a CPU: `warps` says how long a call takes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from fuseline.core.selection.tuned import Tile
from fuseline.core.specs.spec import Case, Implementation, OpSpec, Tuning

SHIPPED = Path(__file__).with_name("tuned")
# A tile of this size is wrong, one of that size is so on rows of odd length.
WRONG, WRONG_IF_ODD, RAISES = 8, 16, 4


def double(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


def with_tile(tile: Tile, x: torch.Tensor) -> torch.Tensor:
    end = perf_counter() + 2e-4 * tile.warps
    if tile.size == RAISES:
        raise ValueError("does not fit")
    wrong = tile.size == WRONG or (tile.size == WRONG_IF_ODD and x.shape[-1] % 2)
    y = (3 if wrong else 2) * x
    while perf_counter() < end:
        pass
    return y


def case(shape: tuple[int, int]) -> Case:
    return Case("x".join(map(str, shape)), {"shape": shape})


def make_inputs(case: Case, dtype: Any, device: Any, generator: torch.Generator) -> dict[str, Any]:
    shape = case.args["shape"]
    return {"x": torch.randn(shape, generator=generator, dtype=dtype, device=device)}


SPEC = OpSpec(
    name="double",
    reference=double,
    implementations=(
        Implementation("eager", double, role="eager"),
        Implementation("tiled", partial(with_tile, Tile(64, 8))),
    ),
    make_inputs=make_inputs,
    cases=(case((4, 64)),),
    dtypes=(torch.float32, torch.float64),
    tuning=Tuning(
        impl="tiled",
        shipped=SHIPPED,
        rows=(64, 256),
        candidates=lambda direction, size, row: (
            Tile(WRONG, 1), Tile(WRONG_IF_ODD, 1) if row == 256 else Tile(64, 4), Tile(RAISES, 1),
            Tile(64, 2) if row == 64 else Tile(128, 8),
        ),
        cases=lambda row: (case((2, row or 512)), case((8, row or 512))),
        proofs=lambda row: (case((3, (row or 512) - 1)),),
        call=lambda tile: partial(with_tile, tile),
    ),
)  # fmt: skip
