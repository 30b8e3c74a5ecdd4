"""What torch.compile fuses of the study's patterns on a CPU is what docs/fusion.md says."""

from __future__ import annotations

from collections.abc import Iterator

import fusion_patterns
import pytest
import torch
import torch._inductor.config
from fusion_patterns import PATTERNS

import fuseline
from fuselab.fusion.assertion import assert_fused

OURS = [name for name in PATTERNS if hasattr(fuseline, name)]
# Beside the result: the middle of two products, and what torch's libraries allocate.
BUFFERS = ("matmul_add_gelu", "matmul_matmul", "mlp", "conv_add", "conv_relu", "conv_add_relu",
           "conv_bn", "attention")  # fmt: skip
# Of 32 numbers each, before the convolution.
FOLDING = {"conv_bn": 7}


@pytest.fixture(autouse=True)
def _one_compiler() -> Iterator[None]:
    with torch._inductor.config.patch(compile_threads=1):
        yield


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_the_table_is_what_torch_compile_does(name: str) -> None:
    version = fusion_patterns.documented_version()
    if torch.__version__.split("+")[0] != version:
        pytest.skip(f"the table is of torch {version}, this is {torch.__version__}")
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("the table is of a CPU with AVX2 or AVX-512")
    assert fusion_patterns.row(name) == fusion_patterns.documented()[name]


def test_the_table_has_every_pattern_once() -> None:
    assert list(fusion_patterns.documented()) == list(PATTERNS)


@pytest.mark.parametrize("name", OURS)
def test_ours_is_one_kernel_at_the_least_traffic(name: str) -> None:
    operator = getattr(fuseline, name)
    folding = FOLDING.get(name, 0)
    assert_fused(
        lambda *inputs: operator(*inputs),
        *PATTERNS[name].inputs(),
        kernels=1 + folding,
        traffic=1.08 if folding else 1.05,
        peak=None if name in BUFFERS else 1.01,
    )
