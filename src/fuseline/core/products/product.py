"""y = activation(a @ b + bias): what its operators share, whoever multiplies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import move_batch_dim_to_front, unbatched
from fuseline.core.products.backend import Backend, are_aligned, gelu, like_factor
from fuseline.core.registration import operator
from fuseline.core.registration.contract import (
    Contract,
    Kernels,
    differentiable_backward,
    wants_graph,
)
from fuseline.core.selection.rules import DTYPE, Fact

_SIZES = tuple(1 << k for k in range(6, 15, 2))


class Arguments(NamedTuple):
    """A call. activation: "relu", "tanh" (GELU's formula), "none" (GELU by erf), or None."""

    a: Tensor
    b: Tensor
    bias: Tensor | None
    activation: str | None


@dataclass(frozen=True)
class Product:
    """One operator.

    activation  "", "relu" or "gelu"; the latter has an argument `approximate`
    biased      whether there is a bias

    Saved for backward, beside a and b: y of "relu", a @ b + bias of "gelu".
    """

    name: str
    activation: str = ""
    biased: bool = True

    def of(self, *args: Any) -> Arguments:
        """Return the call that these arguments of the operator make."""
        bias = args[2] if self.biased else None
        which = args[-1] if self.activation == "gelu" else self.activation or None
        return Arguments(args[0], args[1], bias, which)

    def validate(self, *args: Any) -> None:
        """Refuse what no implementation takes."""
        a, b, _, activation = self.of(*args)
        arguments.require_tensor(self.name, a, "a")
        arguments.require_like(self.name, "b", b, a, "a")
        for name, t in (("a", a), ("b", b)):
            if t.dim() < 2:
                raise ValueError(
                    f"{self.name}: {name} has shape {tuple(t.shape)}, "
                    "expected two dimensions or more"
                )
        if b.shape[-2] != a.shape[-1] or (b.dim() > 2 and b.shape[:-2] != a.shape[:-2]):
            rows = a.shape[-1]
            batch = ", ".join(str(size) for size in (*a.shape[:-2], rows))
            raise ValueError(
                f"{self.name}: b has shape {tuple(b.shape)}, "
                f"expected ({rows}, N) or ({batch}, N) beside a of {tuple(a.shape)}"
            )
        if self.biased:
            self._validate_bias(a, b, args[2])
        if self.activation == "gelu" and activation not in ("tanh", "none"):
            raise ValueError(
                f"{self.name}: approximate is {activation!r}, expected 'tanh' or 'none'"
            )

    def _validate_bias(self, a: Tensor, b: Tensor, bias: Tensor) -> None:
        arguments.require_like(self.name, "bias", bias, a, "a")
        if bias.shape != b.shape[-1:]:
            raise ValueError(
                f"{self.name}: bias has shape {tuple(bias.shape)}, "
                f"expected ({b.shape[-1]},), the columns of b"
            )

    def decomposed(self, *args: Any) -> Tensor:
        """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
        self.validate(*args)
        return formula(*self.of(*args))

    def contract(self) -> Contract:
        gelu = self.activation == "gelu"
        rest = ", str approximate" if gelu else ""
        saved = {"": "", "relu": ", Tensor y", "gelu": ", Tensor h"}[self.activation]
        needs = ", bool need_da, bool need_db" + (", bool need_dbias" if self.biased else "")
        return Contract(
            name=self.name,
            args="Tensor a, Tensor b" + (", Tensor bias" if self.biased else "") + rest,
            fwd_returns="(Tensor, Tensor)" if gelu else "",
            bwd_args=f"Tensor dy, Tensor a, Tensor b{saved}{rest}{needs}",
            bwd_returns="(Tensor, Tensor, Tensor)" if self.biased else "(Tensor, Tensor)",
            fake=self._fake,
            fake_fwd=self._fake_fwd if gelu else None,
            fake_bwd=self._fake_bwd,
            decomposed=self.decomposed,
            function=self._function,
            vmap=self._vmap,
            facts={
                DTYPE: Fact(lambda a, *rest: a.dtype),
                "m": Fact(lambda a, *rest: a.shape[-2], _SIZES),
                "n": Fact(lambda a, b, *rest: b.shape[-1], _SIZES),
                "k": Fact(lambda a, *rest: a.shape[-1], _SIZES),
                "batch": Fact(lambda a, *rest: a.shape[:-2].numel(), _SIZES),
                "aligned": Fact(lambda a, b, *rest: are_aligned(a, b)),
            },
        )

    def kernels(self, backend: Backend) -> Kernels:
        """Return the functions of the operator by a backend."""
        gelu = self.activation == "gelu"

        def run(*args: Any, wrap: Any = None) -> Tensor:
            return forward(args, False, wrap)[0]

        def fwd(*args: Any, wrap: Any = None) -> tuple[Tensor, Tensor | None]:
            return forward(args, True, wrap)

        def forward(args: tuple[Any, ...], save: bool, wrap: Any) -> tuple[Tensor, Tensor | None]:
            if not backend.checks:
                self.validate(*args)
            return backend.tracing(wrap).forward(*self.of(*args), save)

        def bwd(
            dy: Tensor, a: Tensor, b: Tensor, *args: Any, wrap: Any = None
        ) -> tuple[Tensor, ...]:
            saved, *rest = args if self.activation else (None, *args)
            activation = rest[0] if gelu else self.activation or None
            needs = (*rest[gelu:], False)[:3]
            found = backend.tracing(wrap).gradients(dy, a, b, saved, activation, needs)
            return tuple(a.new_empty((0,)) if t is None else t for t in found[: 2 + self.biased])

        return Kernels(run, fwd if gelu else None, bwd)

    def refusal(self, backend: Backend, direction: str, *args: Any) -> str | None:
        """Return why a backend does not serve a call, or None."""
        a, b, _, activation = self.of(*args)
        return backend.refusal(direction, a, b, activation)

    def by_rule(self, backend: Backend) -> bool:
        return not backend.gains_by(self.activation or None)

    def _fake(self, *args: Any) -> Tensor:
        self.validate(*args)
        a, b, *_ = self.of(*args)
        return a.new_empty((*a.shape[:-1], b.shape[-1]))

    def _fake_fwd(self, *args: Any) -> tuple[Tensor, Tensor]:
        y = self._fake(*args)
        return y, torch.empty_like(y)

    def _fake_bwd(self, dy: Tensor, a: Tensor, b: Tensor, *args: Any) -> tuple[Tensor, ...]:
        arguments.require_tensor(self.name, b, "b")
        gelu = ("tanh",) if self.activation == "gelu" else ()
        bias = (b.new_empty(b.shape[-1:]),) if self.biased else ()
        self.validate(a, b, *bias, *gelu)
        shape = torch.Size((*a.shape[:-1], b.shape[-1]))
        arguments.require_exactly(self.name, "dy", dy, shape, a.dtype, a.device)
        if self.activation:
            name = "y" if self.activation == "relu" else "h"
            arguments.require_exactly(self.name, name, args[0], shape, a.dtype, a.device)
        if gelu and args[1] not in ("tanh", "none"):
            raise ValueError(f"{self.name}: approximate is {args[1]!r}, expected 'tanh' or 'none'")
        needs = args[-2 - len(bias) :]
        each = zip((a, b, *bias), needs, strict=True)
        da, db, *dbias = (t.new_empty(t.shape if need else (0,)) for t, need in each)
        return da, like_factor(b) if needs[1] else db, *dbias

    def _function(
        self, fwd: Callable[..., Any], bwd: Callable[..., Any]
    ) -> type[torch.autograd.Function]:
        gelu, relu, tensors = self.activation == "gelu", self.activation == "relu", 2 + self.biased
        decomposed = self.decomposed

        class Multiplied(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Tensor:
                result = fwd(*args)
                y: Tensor = result[0] if gelu else result
                ctx.save_for_backward(*args[:tensors], *(result[1:] if gelu else (y,) * relu))
                ctx.rest = args[tensors:]
                return y

            @staticmethod
            def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
                saved, rest, needs = ctx.saved_tensors, ctx.rest, ctx.needs_input_grad
                if wants_graph((dy, *saved)):
                    args = (*saved[:tensors], *rest)
                    return differentiable_backward(decomposed, args, needs, dy)
                grads = bwd(dy, *saved[:2], *saved[tensors:], *rest, *needs[:tensors])
                each = zip(grads, needs[:tensors], strict=True)
                return (*(g if need else None for g, need in each), *(None for _ in rest))

        return Multiplied

    def _vmap(self, op: Callable[..., Any]) -> Callable[..., Any]:
        tensors = 2 + self.biased

        def rule(info: Any, in_dims: Any, *args: Any) -> Any:
            size, given, dims = info.batch_size, args[:tensors], in_dims[:tensors]
            if size:
                self.validate(*map(unbatched, given, dims), *args[tensors:])
            a, b, *bias = given
            if dims[0] is None and dims[1] is None:  # the bias alone
                a = a.expand(size, *a.shape)
            elif dims[0] is None or dims[1] is not None:
                a = move_batch_dim_to_front(a, dims[0], size)
            else:
                a = a.movedim(dims[0], 0)
            if dims[1] is not None or b.dim() > 2:
                b = move_batch_dim_to_front(b, dims[1], size)
                if b.dim() < a.dim():
                    b = b.view(size, *(1,) * (a.dim() - 3), *b.shape[1:])
                    b = b.expand(*a.shape[:-2], *b.shape[-2:])
            if bias and dims[2] is not None:
                t = bias[0].movedim(dims[2], 0)
                bias = [t.view(size, *(1,) * (a.dim() - 2), t.shape[-1])]
                return formula(*self.of(a, b, *bias, *args[tensors:])), 0
            return op(a, b, *bias, *args[tensors:]), 0

        return rule


def formula(a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None) -> Tensor:
    """Return activation(a @ b + bias), for any bias that broadcasts."""
    h = a @ b
    if bias is not None:
        h = h + bias
    if activation is None:
        return h
    return torch.relu(h) if activation == "relu" else gelu(h, activation)


def call(
    product: Product, selector: Any, public: Callable[..., Any], impl: str, *args: Any
) -> Tensor:
    """Run an operator; under autocast as torch's products run."""
    y: Tensor = operator.call(selector, product.validate, public, impl, *operator.lowered(*args))
    return y
