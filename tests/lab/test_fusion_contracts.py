"""What torch.compile fuses of the study's patterns on a CPU is what docs/fusion.md says."""

from __future__ import annotations

from collections.abc import Iterator

import fusion_patterns
import pytest
import torch
import torch._inductor.config
from fusion_patterns import HEADS, PATTERNS

import fuseline
from fuselab.fusion.assertion import assert_fused

OURS = [name for name in PATTERNS if hasattr(fuseline, name)]
# Beside the result: the middle of two products, and what torch's libraries allocate.
BUFFERS = ("matmul_add_gelu", "matmul_matmul", "mlp", "conv_add", "conv_relu", "conv_add_relu",
           "conv_bn", "attention", "multihead_attention")  # fmt: skip
# Kernels and traffic: vectors folded before the convolution; a product, attention, a product.
SEVERAL = {"conv_bn": (8, 1.08), "multihead_attention": (3, 2.34)}
MORE = {"multihead_attention": (HEADS,)}


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
def test_ours_is_one_kernel_at_the_least_traffic_or_few(name: str) -> None:
    operator = getattr(fuseline, name)
    kernels, traffic = SEVERAL.get(name, (1, 1.05))
    assert_fused(
        lambda *inputs: operator(*inputs, *MORE.get(name, ())),
        *PATTERNS[name].inputs(),
        kernels=kernels,
        traffic=traffic,
        peak=None if name in BUFFERS else 1.01,
    )
