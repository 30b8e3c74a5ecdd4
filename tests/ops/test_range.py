"""Every operator keeps its budget at both ends of each dtype's range, with and without eps."""

from __future__ import annotations

import pytest
import torch
from ops.ranges import SPECS, failures

CELLS = [
    pytest.param(name, impl.name, dtype, marks=() if impl.name == "cpu" else pytest.mark.gpu)
    for name, spec in SPECS.items()
    for impl in spec.implementations
    if impl.role == "ours"
    for dtype in spec.dtypes
]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # long double's own overflows
@pytest.mark.parametrize(("name", "impl", "dtype"), CELLS, ids=str)
@pytest.mark.parametrize("longest", [1500, 50000])
def test_the_whole_range(name: str, impl: str, dtype: torch.dtype, longest: int) -> None:
    device = "cpu" if impl == "cpu" else "cuda"
    if reason := SPECS[name].implementation(impl).unavailable(device):
        pytest.skip(reason)
    found = failures(name, impl, dtype, device, 60 if longest == 1500 else 4000, longest)
    if found:
        pytest.fail(f"{len(found)} wrong\n" + "\n".join(found[:8]), pytrace=False)
