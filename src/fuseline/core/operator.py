"""What the Python sides of operators share: the public function, contracts, the vmap rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function

from fuseline.core import arguments, contract
from fuseline.core.batching import in_front, one
from fuseline.core.select import Selector


def call(
    selector: Selector,
    validate: Callable[..., object],
    public: Callable[..., Any],
    impl: str,
    *args: Any,
) -> Any:
    """Runs `impl` on args, the first of which is a tensor; public(*args, impl=impl) was called.

    validate(*args) refuses what no implementation takes.
    """
    x = args[0]
    if is_compiling():
        validate(*args)
        return selector.traced(impl, x.device.type)(*args)
    try:
        # Two attributes cost a fifth of `x.device.type`.
        device_type = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
        return selector.calls[impl, device_type](*args)
    except Exception:
        if has_torch_function(args):  # torch.fx's proxies
            return handle_torch_function(public, args, *args, impl=impl)
        validate(*args)  # a good call pays nothing for the friendly message
        raise


def call_along(
    dim: int,
    selector: Selector,
    validate: Callable[..., None],
    public: Callable[..., Any],
    impl: str,
    *tensors: Tensor,
) -> Tensor:
    """`call` of an operator over the last dimension, which is where `dim` is moved and back."""
    x = tensors[0]
    is_tensor = isinstance(x, Tensor)
    y: Tensor
    if dim == -1 or (is_tensor and dim == x.dim() - 1):
        y = call(selector, validate, public, impl, *tensors)
        return y
    if not is_tensor and has_torch_function(tensors):  # torch.fx's proxies
        y = handle_torch_function(public, tensors, *tensors, dim=dim, impl=impl)
        return y
    validate(*tensors)
    arguments.require_dim(selector.op, dim, x)
    y = call(selector, validate, public, impl, *(t.movedim(dim, -1) for t in tensors))
    return y.movedim(-1, dim).contiguous()


def saving_output(
    name: str,
    validate: Callable[[Tensor], None],
    decomposed: Callable[[Tensor], Tensor],
    gradient: Callable[[Tensor, Tensor], Tensor],
) -> contract.Contract:
    """The contract of an operator on rows of one x that saves its output y alone.

    gradient(dy, y) is the formula of dx in differentiable torch operations.
    """

    def fake(x: Tensor) -> Tensor:
        validate(x)
        return x.new_empty(x.shape)

    def fake_bwd(dy: Tensor, y: Tensor) -> Tensor:
        arguments.require_rows(name, y, "y")
        arguments.require_exactly(name, "dy", dy, y.shape, y.dtype, y.device)
        return y.new_empty(y.shape)

    def function(fwd: Callable[..., Any], bwd: Callable[..., Any]) -> type[torch.autograd.Function]:
        class SavesOutput(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                y: Tensor = fwd(x)
                ctx.save_for_backward(y)
                return y

            @staticmethod
            def backward(ctx: Any, dy: Tensor) -> Any:
                (y,) = ctx.saved_tensors
                # y is an output of this node: a graph of the formula goes on through it.
                return (gradient if contract.wants_graph((dy, y)) else bwd)(dy, y)

        return SavesOutput

    return contract.Contract(
        name=name,
        args="Tensor x",
        bwd_args="Tensor dy, Tensor y",
        bwd_returns="Tensor",
        fake=fake,
        fake_bwd=fake_bwd,
        decomposed=decomposed,
        function=function,
        vmap=vmap_over_rows(validate),
    )


@dataclass(frozen=True)
class SavingInput:
    """An operator on one x that saves x and, of what its forward computes, the results `saved`.

    sizes(x)    name -> shape and dtype of each output and of each result that is saved
    decomposed  the formula in torch operations that autograd, vmap and jvp can take apart
    """

    name: str
    validate: Callable[[Tensor], None]
    sizes: Callable[[Tensor], dict[str, tuple[torch.Size, torch.dtype]]]
    decomposed: Callable[[Tensor], Any]
    outputs: tuple[str, ...] = ("y",)
    saved: tuple[str, ...] = ()

    def contract(self) -> contract.Contract:
        grads = [f"d{output}" for output in self.outputs]
        return contract.Contract(
            name=self.name,
            args="Tensor x",
            returns=_tensors(self.outputs),
            fwd_returns=_tensors(self._results) if self.saved else "",
            bwd_args=", ".join(f"Tensor {name}" for name in (*grads, "x", *self.saved)),
            bwd_returns="Tensor",
            fake=partial(self._empty, self.outputs),
            fake_fwd=partial(self._empty, self._results) if self.saved else None,
            fake_bwd=self._fake_bwd,
            decomposed=self.decomposed,
            function=self._function,
            vmap=vmap_over_rows(self.validate),
        )

    def validate_bwd(self, *tensors: Tensor) -> None:
        """Refuses what no backward takes: the outputs' gradients, x, and what was saved."""
        count = len(self.outputs)
        dys, x, saved = tensors[:count], tensors[count], tensors[count + 1 :]
        self.validate(x)
        sizes = self.sizes(x)
        for name, dy in zip(self.outputs, dys, strict=True):
            arguments.require_exactly(self.name, f"d{name}", dy, *sizes[name], x.device)
        for name, t in zip(self.saved, saved, strict=True):
            arguments.require_exactly(self.name, name, t, *sizes[name], x.device)

    @property
    def _results(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.outputs, *self.saved)))

    def _empty(self, names: tuple[str, ...], x: Tensor) -> Any:
        self.validate(x)
        sizes = self.sizes(x)
        made = tuple(x.new_empty(sizes[n][0], dtype=sizes[n][1]) for n in names)
        return made if len(made) > 1 else made[0]

    def _fake_bwd(self, *tensors: Tensor) -> Tensor:
        self.validate_bwd(*tensors)
        x = tensors[len(self.outputs)]
        return x.new_empty(x.shape)

    def _function(
        self, fwd: Callable[..., Any], bwd: Callable[..., Any]
    ) -> type[torch.autograd.Function]:
        decomposed, outputs = self.decomposed, len(self.outputs)
        kept = [self._results.index(name) for name in self.saved]

        class SavesInput(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Any:
                results = fwd(x)
                ctx.save_for_backward(x, *(results[i] for i in kept))
                if not kept:
                    return results
                return results[:outputs] if outputs > 1 else results[0]

            @staticmethod
            def backward(ctx: Any, *dys: Tensor) -> Any:
                x, *saved = ctx.saved_tensors
                if contract.wants_graph((*dys, x)):
                    needs = ctx.needs_input_grad
                    return contract.differentiable_backward(decomposed, (x,), needs, *dys)
                return bwd(*dys, x, *saved)

        return SavesInput


def _tensors(names: tuple[str, ...]) -> str:
    """The schema's type of as many tensors."""
    return f"({', '.join(['Tensor'] * len(names))})" if len(names) > 1 else "Tensor"


def vmap_over_rows(validate: Callable[..., None]) -> Callable[..., Any]:
    """The vmap rule of an operator whose tensors all have leading dimensions that are rows."""

    def of(op: Callable[..., Any]) -> Callable[..., Any]:
        def rule(info: Any, in_dims: Any, *args: Any) -> Any:
            def each(change: Callable[..., Any], *more: Any) -> tuple[Any, ...]:
                pairs = zip(args, in_dims, strict=True)
                return tuple(
                    change(a, dim, *more) if isinstance(a, Tensor) else a for a, dim in pairs
                )

            if info.batch_size:
                validate(*each(one))
            out = op(*each(in_front, info.batch_size))
            return out, (0,) * len(out) if isinstance(out, tuple) else 0

        return rule

    return of
