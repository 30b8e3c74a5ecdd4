"""Every way from Python to the kernel: the same C++ behind each that does not say otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import rmsnorm_classic
import rmsnorm_stable  # noqa: F401  registers its operators
import torch
import torch.nn.functional as F
from torch import Tensor

import fuseline

EPS = 1e-6
Call = Callable[[Tensor, Tensor], Tensor]
stable_forward = torch.ops.rmsnorm_stable.forward.default
stable_backward = torch.ops.rmsnorm_stable.backward.default
classic = torch.ops.rmsnorm_classic


@dataclass(frozen=True)
class Way:
    """A way to call; `differentiable` if the result has a gradient."""

    name: str
    call: Call
    differentiable: bool = True
    kernel: str = "the same"


# torch.library, in Python: define and impl, whose body calls the stable operator.
torch.library.define("rmsnorm_ways::impl", "(Tensor x, Tensor weight, float eps) -> Tensor")


@torch.library.impl("rmsnorm_ways::impl", ("cpu", "cuda"))
def _impl(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return stable_forward(x, weight, eps)[0]


# register_autograd, on an operator whose kernel is C++: the seed's way.
@torch.library.register_fake("rmsnorm_stable::forward")
def _forward_fake(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows = x.shape.numel() // x.shape[-1]
    wide = x.dtype if x.dtype == torch.float64 else torch.float32
    return torch.empty_like(x), x.new_empty(rows, dtype=wide)


@torch.library.register_fake("rmsnorm_stable::backward")
def _backward_fake(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


# A copy of the operator, so that the plain one stays without autograd.
torch.library.define(
    "rmsnorm_ways::registered", "(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)"
)
torch.library.impl("rmsnorm_ways::registered", ("cpu", "cuda"), stable_forward)
torch.library.register_fake("rmsnorm_ways::registered", _forward_fake)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[0], inputs[1], output[1])
    ctx.mark_non_differentiable(output[1])


def _gradient(ctx, dy, _):
    return *stable_backward(dy, *ctx.saved_tensors), None


torch.library.register_autograd("rmsnorm_ways::registered", _gradient, setup_context=_save)


@torch.library.custom_op("rmsnorm_ways::custom", mutates_args=())
def custom(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return stable_forward(x, weight, eps)


custom.register_fake(_forward_fake)
custom.register_autograd(_gradient, setup_context=_save)


class Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        y, rstd = stable_forward(x, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        return *stable_backward(dy, *ctx.saved_tensors), None


def guarded(x: Tensor, weight: Tensor) -> Tensor:
    """The Function only where a gradient is asked for: the first of fuseline's guards."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        return Function.apply(x, weight, EPS)
    return stable_forward(x, weight, EPS)[0]


def _triton_op() -> list[Way]:
    """triton_op with wrap_triton around the Triton kernel, and that kernel in a Function alone."""
    import rmsnorm_triton as kernels
    import triton

    @torch.library.triton_op("rmsnorm_ways::triton", mutates_args={})
    def op(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        x, weight = x.contiguous(), weight.contiguous()
        n = x.shape[-1]
        rows = x.numel() // n
        y, rstd = torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
        torch.library.wrap_triton(kernels._forward)[(rows,)](
            x, weight, y, rstd, n, eps, triton.next_power_of_2(n)
        )
        return y, rstd

    def gradient(ctx, dy, _):
        return *kernels.backward(dy, *ctx.saved_tensors), None

    op.register_autograd(gradient, setup_context=_save)
    return [
        Way("triton_op + wrap_triton", lambda x, w: op(x, w, EPS)[0], kernel="Triton"),
        Way("Triton in Function", lambda x, w: kernels.rms_norm(x, w, EPS), kernel="Triton"),
    ]


def ways(device: str) -> list[Way]:
    """All ways that run on the device."""
    found = [
        Way("pybind11", lambda x, w: rmsnorm_classic._C.rms_norm(x, w, EPS), differentiable=False),
        Way(
            "TORCH_LIBRARY", lambda x, w: classic.rms_norm.default(x, w, EPS), differentiable=False
        ),
        Way(
            "TORCH_LIBRARY + C++ autograd",
            lambda x, w: classic.rms_norm_autograd.default(x, w, EPS),
        ),
        Way("stable ABI", lambda x, w: stable_forward(x, w, EPS)[0], differentiable=False),
        Way(
            "torch.library define + impl",
            lambda x, w: torch.ops.rmsnorm_ways.impl.default(x, w, EPS),
            differentiable=False,
        ),
        Way(
            "stable ABI + register_autograd",
            lambda x, w: torch.ops.rmsnorm_ways.registered.default(x, w, EPS)[0],
        ),
        Way("custom_op + register_autograd", lambda x, w: custom(x, w, EPS)[0]),
        Way("stable ABI in autograd.Function", lambda x, w: Function.apply(x, w, EPS)),
        Way("the same, guarded", guarded),
    ]
    if device == "cuda" and find_spec("triton"):
        found += _triton_op()
    return [
        *found,
        Way("fuseline.rms_norm", lambda x, w: fuseline.rms_norm(x, w, EPS), kernel="fuseline's"),
        Way("torch's F.rms_norm", lambda x, w: F.rms_norm(x, w.shape, w, EPS), kernel="torch's"),
    ]
