"""Two products, y = activation(x @ w1 + b1) @ w2 + b2: what their operators share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import move_batch_dim_to_front, unbatched
from fuseline.core.products.backend import Backend, like_factor
from fuseline.core.products.product import formula
from fuseline.core.registration.contract import (
    Contract,
    Kernels,
    differentiable_backward,
    wants_graph,
)
from fuseline.core.selection.rules import DTYPE, Fact

_SIZES = tuple(1 << k for k in range(6, 15, 2))
# What the operators call an activation -> what products call it.
ACTIVATIONS = {"gelu": "tanh", "gelu_none": "none", "relu": "relu", None: None}


class Arguments(NamedTuple):
    """A call; activation as products call it."""

    x: Tensor
    w1: Tensor
    b1: Tensor | None
    w2: Tensor
    b2: Tensor | None
    activation: str | None


@dataclass(frozen=True)
class Chain:
    """One operator of x (..., K), w1 (K, N), w2 (N, P) and, `biased`, b1 (N,) and b2 (P,).

    activations  the names that its last argument takes

    Saved for backward, beside the arguments: the middle, activation(x @ w1 + b1), or w1 @ w2 where
    that comes first; and what GELU was of.
    """

    name: str
    biased: bool
    activations: tuple[str | None, ...]

    @property
    def tensors(self) -> int:
        return 5 if self.biased else 3

    def of(self, *args: Any) -> Arguments:
        """Return the call that these arguments of the operator make."""
        if self.biased:
            x, w1, b1, w2, b2, activation = args
            return Arguments(x, w1, b1, w2, b2, self._as_products(activation))
        x, w1, w2, activation = args
        return Arguments(x, w1, None, w2, None, self._as_products(activation))

    def _as_products(self, activation: str | None) -> str | None:
        """Return what products call an activation; ValueError for one that it does not take."""
        if activation not in self.activations:
            raise ValueError(
                f"{self.name}: activation is {activation!r}, "
                f"expected one of {', '.join(map(repr, self.activations))}"
            )
        return ACTIVATIONS[activation]

    def validate(self, *args: Any) -> None:
        """Refuse what no implementation takes."""
        x, w1, b1, w2, b2, _ = self.of(*args)
        arguments.require_tensor(self.name, x)
        if x.dim() < 2:
            raise ValueError(
                f"{self.name}: x has shape {tuple(x.shape)}, expected two dimensions or more"
            )
        self._require("w1", w1, x, (x.shape[-1], None))
        self._require("w2", w2, x, (w1.shape[-1], None))
        if self.biased:
            self._require("b1", b1, x, (w1.shape[-1],))
            self._require("b2", b2, x, (w2.shape[-1],))

    def _require(self, name: str, t: Any, x: Tensor, sizes: tuple[int | None, ...]) -> None:
        """Refuse what is not of these sizes, None for any, and as x."""
        arguments.require_like(self.name, name, t, x)
        fits = len(t.shape) == len(sizes) and all(
            want is None or have == want for have, want in zip(t.shape, sizes, strict=True)
        )
        if not fits:
            said = ", ".join("any" if size is None else str(size) for size in sizes)
            raise ValueError(
                f"{self.name}: {name} has shape {tuple(t.shape)}, "
                f"expected ({said}) beside x of {tuple(x.shape)}"
            )

    def weights_first(self, call: Arguments) -> bool:
        """Return whether x @ (w1 @ w2) takes fewer operations: only if nothing lies between."""
        if self.biased or call.activation is not None:
            return False
        rows, (k, n), p = prod(call.x.shape[:-1]), call.w1.shape, call.w2.shape[-1]
        return k * p * (n + rows) < rows * n * (k + p)

    def decomposed(self, *args: Any) -> Tensor:
        """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
        self.validate(*args)
        x, w1, b1, w2, b2, activation = self.of(*args)
        return formula(formula(x, w1, b1, activation), w2, b2, None)

    def kernels(self, backend: Backend) -> Kernels:
        """Return the functions of the operator by a backend."""

        def run(*args: Any, wrap: Any = None) -> Tensor:
            return forward(args, False, backend.tracing(wrap))[0]

        def fwd(*args: Any, wrap: Any = None) -> tuple[Tensor, Tensor, Tensor]:
            return forward(args, True, backend.tracing(wrap))

        def forward(
            args: tuple[Any, ...], save: bool, backend: Backend
        ) -> tuple[Tensor, Tensor, Tensor]:
            if not backend.checks or args[1].dim() != 2 or args[-2 - self.biased].dim() != 2:
                self.validate(*args)
            call = self.of(*args)
            x, w1, b1, w2, b2, activation = call
            none = x.new_empty((0,))
            if self.weights_first(call):
                middle = backend.product(w1, w2)
                return backend.product(x, middle), middle, none
            middle, h = backend.forward(x, w1, b1, activation, save)
            return backend.forward(middle, w2, b2, None, False)[0], middle, none if h is None else h

        def bwd(dy: Tensor, *args: Any, wrap: Any = None) -> tuple[Tensor, ...]:
            given, (middle, h, activation, *needs) = args[: self.tensors], args[self.tensors :]
            call = self.of(*given, activation)
            by = self._through_weights if self.weights_first(call) else self._through_middle
            found = by(backend.tracing(wrap), dy, call, middle, h, needs)
            return tuple(dy.new_empty((0,)) if t is None else t for t in found)

        return Kernels(run, fwd, bwd)

    def _through_middle(
        self, backend: Backend, dy: Tensor, call: Arguments, middle: Tensor, h: Tensor, needs: Any
    ) -> tuple[Tensor | None, ...]:
        x, w1, _, w2, _, activation = call
        need_x, need_w1, need_b1, need_w2, need_b2 = (
            needs if self.biased else (*needs[:2], False, needs[2], False)
        )
        below = need_x or need_w1 or need_b1
        wanted = (below, need_w2, need_b2)
        dmiddle, dw2, db2 = backend.gradients(dy, middle, w2, None, None, wanted)
        dx = dw1 = db1 = None
        if below:
            assert dmiddle is not None
            saved = middle if activation == "relu" else h if activation else None
            wanted = (need_x, need_w1, need_b1)
            dx, dw1, db1 = backend.gradients(dmiddle, x, w1, saved, activation, wanted)
        return (dx, dw1, db1, dw2, db2) if self.biased else (dx, dw1, dw2)

    def _through_weights(
        self, backend: Backend, dy: Tensor, call: Arguments, both: Tensor, h: Tensor, needs: Any
    ) -> tuple[Tensor | None, ...]:
        need_x, need_w1, need_w2 = needs
        wanted = (need_x, need_w1 or need_w2, False)
        dx, dboth, _ = backend.gradients(dy, call.x, both, None, None, wanted)
        dw1 = dw2 = None
        if need_w1 or need_w2:
            assert dboth is not None
            wanted = (need_w1, need_w2, False)
            dw1, dw2, _ = backend.gradients(dboth, call.w1, call.w2, None, None, wanted)
        return dx, dw1, dw2

    def contract(self) -> Contract:
        names = ("x", "w1", "b1", "w2", "b2") if self.biased else ("x", "w1", "w2")
        tensors = ", ".join(f"Tensor {name}" for name in names)
        activation = "str activation" if self.biased else "str? activation"
        needs = ", ".join(f"bool need_d{name}" for name in names)
        return Contract(
            name=self.name,
            args=f"{tensors}, {activation}",
            fwd_returns="(Tensor, Tensor, Tensor)",
            bwd_args=f"Tensor dy, {tensors}, Tensor middle, Tensor h, {activation}, {needs}",
            bwd_returns=f"({', '.join(['Tensor'] * len(names))})",
            fake=lambda *args: self._fake_fwd(*args)[0],
            fake_fwd=self._fake_fwd,
            fake_bwd=self._fake_bwd,
            decomposed=self.decomposed,
            function=self._function,
            vmap=self._vmap,
            facts={
                DTYPE: Fact(lambda x, *rest: x.dtype),
                "rows": Fact(lambda x, *rest: x.shape[:-1].numel(), _SIZES),
                "middle": Fact(lambda x, w1, *rest: w1.shape[-1], _SIZES),
            },
        )

    def refusal(self, backend: Backend, direction: str, *args: Any) -> str | None:
        """Return why a backend does not serve a call, or None."""
        x, w1, _, w2, _, activation = self.of(*args)
        first = backend.refusal(direction, x, w1, activation)
        return first or backend.refusal(direction, w1, w2, None)

    def by_rule(self, backend: Backend) -> bool:
        return not all(backend.gains_by(one) for one in self.activations)

    def _fake_fwd(self, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
        self.validate(*args)
        call = self.of(*args)
        x, w1, _, w2, _, activation = call
        y, middle = (x.new_empty((*x.shape[:-1], w.shape[-1])) for w in (w2, w1))
        if self.weights_first(call):
            middle = x.new_empty((w1.shape[0], w2.shape[1]))
        saves = activation in ("tanh", "none")
        return y, middle, x.new_empty(middle.shape if saves else (0,))

    def _fake_bwd(self, dy: Tensor, *args: Any) -> tuple[Tensor, ...]:
        given, (middle, h, activation, *needs) = args[: self.tensors], args[self.tensors :]
        saved = self._fake_fwd(*given, activation)
        for name, t, want in zip(("dy", "middle", "h"), (dy, middle, h), saved, strict=True):
            arguments.require_exactly(self.name, name, t, want.shape, want.dtype, want.device)
        # What is multiplied from the left has a contiguous gradient.
        lefts = (0, 1) if self.weights_first(self.of(*given, activation)) else (0,)
        return tuple(
            t.new_empty((0,))
            if not need
            else t.new_empty(t.shape)
            if i in lefts
            else like_factor(t)
            for i, (t, need) in enumerate(zip(given, needs, strict=True))
        )

    def _function(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> Any:
        tensors, decomposed = self.tensors, self.decomposed

        class Chained(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Tensor:
                y: Tensor
                y, middle, h = fwd(*args)
                ctx.save_for_backward(*args[:tensors], middle, h)
                ctx.activation = args[-1]
                return y

            @staticmethod
            def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
                saved, needs = ctx.saved_tensors, ctx.needs_input_grad
                if wants_graph((dy, *saved)):
                    args = (*saved[:tensors], ctx.activation)
                    return differentiable_backward(decomposed, args, needs, dy)
                grads = bwd(dy, *saved, ctx.activation, *needs[:tensors])
                each = zip(grads, needs[:tensors], strict=True)
                return (*(g if need else None for g, need in each), None)

        return Chained

    def _vmap(self, op: Callable[..., Any]) -> Callable[..., Any]:
        def rule(info: Any, in_dims: Any, *args: Any) -> Any:
            size = info.batch_size
            if size:
                self.validate(*map(unbatched, args[:-1], in_dims[:-1]), args[-1])
            if all(dim is None for dim in in_dims[1:]):
                return op(move_batch_dim_to_front(args[0], in_dims[0], size), *args[1:]), 0
            # A batch of weights, which no product of ours takes with x's own: the formula.
            x, w1, b1, w2, b2, activation = self.of(
                *(_spread(*one, size, args[0].dim() - (in_dims[0] is not None))
                  for one in zip(args[:-1], in_dims[:-1], strict=True)), args[-1]
            )  # fmt: skip
            return formula(formula(x, w1, b1, activation), w2, b2, None), 0

        return rule


def _spread(t: Tensor, dim: int | None, size: int, dims: int) -> Tensor:
    """Return a batch with as many dimensions as x of `dims` has with it."""
    t = move_batch_dim_to_front(t, dim, size)
    return t.view(size, *(1,) * (dims + 1 - t.dim()), *t.shape[1:])
