"""The contract of bias_dropout_add: schemas, fakes, gradients, and the public function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function

from fuseline.core.inputs import arguments, dropout
from fuseline.core.inputs.batching import move_batch_dim_to_front, unbatched
from fuseline.core.registration import contract, operator
from fuseline.ops.bias_dropout_add import impl_eager
from fuseline.primitives import philox
from fuseline.primitives.triton import Wrap

_NAME = "bias_dropout_add"


def bias_dropout_add(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    p: float = 0.5,
    training: bool = False,
    seed: int | Tensor | None = None,
    impl: str = "auto",
) -> Tensor:
    """Add a bias, drop elements, and add to the residual stream, in one pass.

    y = residual + dropout(x + bias); in training dropout multiplies by 0 with probability p, else
    by 1 / (1 - p); otherwise it changes nothing.

    x         (..., N), float64, float32, float16 or bfloat16; any layout, never copied.
    bias      any shape that broadcasts to x's, such as (N,); x's dtype and device; any layout.
    residual  as x: its shape, dtype and device; any layout.
    p         the probability to drop an element, 0 to 1.
    seed      64 bits, of training alone: an int, or a tensor of int64 with shape () on x's device,
              which is read there. None draws them from torch's default CPU generator; while a CUDA
              graph is captured, from that of the device, so that each replay drops other elements;
              under vmap as its `randomness` says. torch.manual_seed repeats all of these. Which
              elements are dropped depends on the seed, p and the place of an element in the logical
              order of x alone: not on layout, dtype, implementation or device.
    impl      "auto", or one of "cpu", "triton", "eager" (the plain formula).

    Returns y with x's shape and dtype in the memory layout of residual, whatever that of x and
    bias (of a residual with gaps or repeated elements: its order of dimensions, dense). Computed in
    float32 (float64 for float64) and rounded once. Saved for backward: the seed, from which the
    elements are drawn again. The gradient of residual is dy itself; that of x, in dy's layout, is
    also bias's where nothing was broadcast. Deterministic, gradients included.
    Under torch.compile a call in training without a seed is left to the compiler, with its own
    random numbers.
    Raises TypeError (dtype), ValueError (shape, device, p, seed, impl) or RuntimeError (an
    implementation that cannot run here) before anything is launched.
    Source: bias_dropout_add of "Unit Test for Fusion".
    """
    if type(p) is not float and not operator.has_proxy(p):
        p = arguments.require_number(_NAME, "p", p)
    if isinstance(seed, Tensor) or (training and seed is None):
        tensors = (x, bias, residual, seed)
        if has_torch_function(tensors):  # torch.fx's proxies
            return handle_torch_function(  # type: ignore[no-any-return]
                bias_dropout_add, tensors, x, bias, residual, p, training, seed, impl
            )
        if seed is None and is_compiling():
            args = operator.admitted(validate, x, bias, residual, p, training, 0)
            return impl_eager.bias_dropout_add(*args[:-1])
    number, tensor = dropout.seeds(x, training, seed)
    drawn = (number,) if tensor is None else (None, tensor)
    args = (x, bias, residual, p, training, *drawn)
    y: Tensor = operator.call(SELECTOR, validate, bias_dropout_add, impl, *args)
    return y


def validate(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    p: float,
    training: bool,
    seed: int | None,
    seed_tensor: Tensor | None = None,
) -> None:
    """Refuse what no implementation takes."""
    arguments.require_rows(_NAME, x)
    arguments.require_twin(_NAME, "residual", residual, x)
    arguments.require_broadcast(_NAME, "bias", bias, x)
    dropout.require_draw(_NAME, x, "p", p, seed, seed_tensor)
    if seed is None and seed_tensor is None and training and p > 0:
        raise ValueError(f"{_NAME}: seed is None, expected a number in training")


def _validate_bwd(
    dy: Tensor, p: float, seed: int | None, seed_tensor: Tensor | None = None
) -> None:
    arguments.require_rows(_NAME, dy, "dy")
    dropout.require_draw(_NAME, dy, "p", p, seed, seed_tensor)
    if seed is None and seed_tensor is None and p > 0:
        raise ValueError(f"{_NAME}: seed is None, expected a number")


def _fake(x: Tensor, bias: Tensor, residual: Tensor, *drop: Any) -> Tensor:
    validate(x, bias, residual, *drop)
    return torch.empty_like(residual)


def _fake_bwd(dy: Tensor, *drop: Any) -> Tensor:
    _validate_bwd(dy, *drop)
    return torch.empty_like(dy)


def _factor(shape: torch.Size, x: Tensor, p: float, seed: int | Tensor | None) -> Tensor | float:
    """Return what dropout multiplies x by, in the type that x is computed in."""
    if seed is None:
        return 1.0
    # The annotations there are TorchScript's; in Python a tensor computes as a number does.
    factor = philox.dropout_factor(list(shape), p, cast(int, seed), x.device)
    return factor.to(torch.promote_types(x.dtype, torch.float32))


def _times(x: Tensor, factor: Tensor | float) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32)) * factor


def _sum(x: Tensor, bias: Tensor, residual: Tensor, factor: Tensor | float) -> Tensor:
    wide = torch.promote_types(x.dtype, torch.float32)
    return (_times(x.to(wide) + bias, factor) + residual).to(x.dtype)


def _key(seed: int | None, seed_tensor: Tensor | None) -> int | Tensor | None:
    return seed if seed_tensor is None else seed_tensor


def decomposed(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    p: float,
    training: bool,
    seed: int | None,
    seed_tensor: Tensor | None = None,
) -> Tensor:
    """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
    validate(x, bias, residual, p, training, seed, seed_tensor)
    key = _key(seed, seed_tensor) if training else None
    return _sum(x, bias, residual, _factor(x.shape, x, p, key))


def _gradient(dy: Tensor, p: float, seed: int | None, seed_tensor: Tensor | None = None) -> Tensor:
    factor = _factor(dy.shape, dy, p, _key(seed, seed_tensor))
    return _times(dy, factor).to(dy.dtype)


def _vmap(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(
        info: Any,
        in_dims: Any,
        x: Tensor,
        bias: Tensor,
        residual: Tensor,
        p: float,
        training: bool,
        seed: int | None,
        seed_tensor: Tensor | None = None,
    ) -> Any:
        x_dim, bias_dim, residual_dim = in_dims[:3]
        seed_dim = None if seed_tensor is None else in_dims[6]
        if info.batch_size:
            first = (
                unbatched(x, x_dim),
                unbatched(bias, bias_dim),
                unbatched(residual, residual_dim),
            )
            key = None if seed_tensor is None else unbatched(seed_tensor, seed_dim)
            validate(*first, p, training, seed, key)
        x = move_batch_dim_to_front(x, x_dim, info.batch_size)
        residual = move_batch_dim_to_front(residual, residual_dim, info.batch_size)
        if bias_dim is not None:
            bias = bias.movedim(bias_dim, 0)
            bias = bias.view(bias.shape[0], *(1,) * (x.dim() - bias.dim()), *bias.shape[1:])
        if not training or p == 0:
            return op(x, bias, residual, p, False, None), 0
        # All elements of the batch draw alike, as if they came one after the other, unless each
        # has a seed of its own.
        own = _key(seed, seed_tensor)
        if isinstance(own, Tensor) and seed_dim is not None:
            own = own.unsqueeze(-1)
        return _sum(x, bias, residual, _factor(x.shape[1:], x, p, own)), 0

    return rule


CONTRACT = contract.Contract(
    name=_NAME,
    args=(
        "Tensor x, Tensor bias, Tensor residual, float p, bool training, SymInt? seed, "
        "Tensor? seed_tensor=None"
    ),
    bwd_args="Tensor dy, float p, SymInt? seed, Tensor? seed_tensor=None",
    bwd_returns="Tensor",
    fake=_fake,
    fake_bwd=_fake_bwd,
    decomposed=decomposed,
    gradient=contract.Gradient(
        ("y",),
        ("x",),
        formula=_gradient,
        shared=(("bias", "x"), ("residual", "y")),
        works="training",
    ),
    vmap=_vmap,
)

_triton = contract.triton_beside(__name__)


def _triton_run(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    p: float,
    training: bool,
    seed: int | None,
    seed_tensor: Tensor | None = None,
    wrap: Wrap | None = None,
) -> Tensor:
    validate(x, bias, residual, p, training, seed, seed_tensor)
    drop = (p, _key(seed, seed_tensor)) if training and p > 0 else None
    y: Tensor = _triton().fwd(x, bias, residual, drop, wrap=wrap)
    return y


def _triton_bwd(
    dy: Tensor,
    p: float,
    seed: int | None,
    seed_tensor: Tensor | None = None,
    wrap: Wrap | None = None,
) -> Tensor:
    _validate_bwd(dy, p, seed, seed_tensor)
    key = 0 if p == 0 else _key(seed, seed_tensor)
    dx: Tensor = _triton().bwd(dy, (p, key), wrap=wrap)
    return dx


def _eager(
    x: Tensor,
    bias: Tensor,
    residual: Tensor,
    p: float,
    training: bool,
    seed: int | None,
    seed_tensor: Tensor | None = None,
) -> Tensor:
    validate(x, bias, residual, p, training, seed, seed_tensor)
    key = cast("int | None", _key(seed, seed_tensor))  # as for `_factor`
    y = impl_eager.bias_dropout_add(x, bias, residual, p, training, key)
    laid_out = torch.empty_like(residual)
    return y if y.stride() == laid_out.stride() else laid_out.copy_(y)


def tile_for(x: Tensor, bias: Tensor, residual: Tensor) -> str:
    """Return the tile that Triton takes for these operands: "rows x columns, warps".

    Columns lie along the axis in which the output is contiguous, rows along the one in which an
    operand is that the kernel transposes.
    """
    validate(x, bias, residual, 0.0, False, None)
    return str(_triton().tile_for(x, bias, residual))


_TRITON = contract.Kernels(run=_triton_run, bwd=_triton_bwd)
SELECTOR = contract.implementations(CONTRACT, _TRITON, _eager)
