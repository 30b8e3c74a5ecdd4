"""Every Triton kernel as the analysis of torch.compile compiles it: needs no GPU.

Before Inductor compiles a graph, torch lowers each kernel to find out which arguments it writes.
torch 2.11 takes all integers for constants there (later versions do not). A kernel that cannot be
lowered so is taken to write all its arguments: the graph is right, but the kernel's inputs are
copied and `mode="reduce-overhead"` runs without CUDA graphs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from ops.without_a_gpu import recorder  # noqa: E402
from triton._C.libtriton import ir  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource, make_backend  # noqa: E402

TYPES = {torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16",
         torch.int64: "i64", torch.uint8: "u8"}  # fmt: skip
TARGET = GPUTarget("cuda", 90, 32)
Made = Callable[..., Any]

pytestmark = pytest.mark.skipif(
    triton.knobs.runtime.interpret, reason="TRITON_INTERPRET is set: there are no JITFunctions"
)


def _norm(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    y, *saved = kernels.fwd(x, w, 1e-6, wrap=wrap)
    kernels.bwd(y, x, w, saved[-1], True, True, wrap=wrap)


def _add_norm(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    y, total, rstd = kernels.fwd(x, x, w, 1e-6, wrap=wrap)
    kernels.bwd(y, y, total, w, rstd, True, True, wrap=wrap)


def _dropout(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    for seeds in ((7, None), (None, torch.tensor(7))):
        for operand in (w, x):
            kernels.run(x, operand, x, 0.3, True, *seeds, wrap=wrap)
        kernels.bwd(x, 0.3, *seeds, wrap=wrap)


def _gelu(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    for approximate in ("none", "tanh"):
        kernels.run(x, w, approximate, wrap=wrap)
        kernels.bwd(x, x, w, approximate, True, True, wrap=wrap)


def _layer_norm(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    y, mean, rstd = kernels.fwd(x, w, w, 1e-6, wrap=wrap)
    kernels.bwd(y, x, w, mean, rstd, True, True, True, wrap=wrap)


def _masked(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    for log in (False, True):
        for mask in (None, w):
            y = kernels.run(x, mask, True, 0.5, log, wrap=wrap)
        kernels.bwd(y, y, True, 0.5, log, wrap=wrap)


def _chain(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    kernels.bwd(x, x, kernels.fwd(x, wrap=wrap)[1], wrap=wrap)


def _pointwise(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    kernels.run(x, wrap=wrap)
    kernels.bwd(x, x, wrap=wrap)


def _products(kernels: Any, wrap: Any, x: torch.Tensor, w: torch.Tensor) -> None:
    if x.dtype == torch.float64:
        pytest.skip("which it does not multiply")
    for act, saves in (("gelu_erf", True), ("none", False)):
        kernels.product(x, x.mT, w[:3] if saves else None, act, saves, saves, wrap=wrap)
        kernels.act_grad(x, x, act, True, wrap=wrap)


CALLS: dict[str, Made] = {
    "add_rms_norm": _add_norm,
    "bias_dropout_add": _dropout,
    "bias_gelu": _gelu,
    "layer_norm": _layer_norm,
    "masked_softmax": _masked,
    "matmul_add_gelu": _products,
    "norm_chain": _chain,
    "pointwise_chain": _pointwise,
    "rms_norm": _norm,
}


def _lower(kernel: Any, args: Any, meta: dict[str, Any]) -> None:
    """Lower a launch to Triton's IR with all that is no tensor a constant."""
    names = [p.name for p in kernel.params]
    values = dict(zip(names, args, strict=False)) | {k: v for k, v in meta.items() if k in names}
    tensors = {k: v for k, v in values.items() if isinstance(v, torch.Tensor)}
    signature = {
        name: "*" + TYPES[tensors[name].dtype] if name in tensors else "constexpr" for name in names
    }
    constants = {name: value for name, value in values.items() if name not in tensors}
    backend, context = make_backend(TARGET), ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    options = backend.parse_options({})
    functions = backend.get_codegen_implementation(options)
    source = ASTSource(kernel, signature, constants, {})
    made = source.make_ir(TARGET, options, functions, backend.get_module_map(), context)
    assert made.verify()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n", [1, 37, 512, 70000])
@pytest.mark.parametrize("op", CALLS)
def test_kernels_lower_where_integers_are_constants(op: str, n: int, dtype: torch.dtype) -> None:
    seen, record = recorder()
    module = importlib.import_module(f"fuseline.ops.{op}.op")
    kernels = getattr(module, "_TRITON", None) or module.contract.triton_beside(module.__name__)()
    CALLS[op](kernels, record, torch.randn(3, n, dtype=dtype), torch.randn(n, dtype=dtype))
    assert seen
    failed = {}
    for kernel, args, meta in seen:
        try:
            _lower(kernel, args, meta)
        except triton.CompilationError as error:
            failed[kernel.fn.__name__] = str(error)
    assert not failed
