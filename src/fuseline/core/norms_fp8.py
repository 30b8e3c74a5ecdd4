"""The contract of norms over rows whose result is float8_e4m3fn, by a scale that is given or by
scales that are made of the result. Forward only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import (
    move_batch_dim_to_front,
    move_weight_batch_to_front,
    unbatched,
)
from fuseline.core.inputs.layout import as_rows, dense
from fuseline.core.registration import contract, operator
from fuseline.core.registration.provider import Kernels

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
BLOCKS = (16, 1024)  # least and most


def require_forward_only(op: str, **tensors: Tensor | None) -> None:
    """Refuse tensors that want a gradient."""
    for name, t in tensors.items():
        if t is not None and t.requires_grad and torch.is_grad_enabled():
            raise RuntimeError(
                f"{op}: {name} requires grad, expected a call without: it is forward only"
            )


def require_scale(op: str, scale: Tensor, x: Tensor) -> None:
    """Refuse a scale that is not one element of float32 beside x."""
    if not isinstance(scale, Tensor):
        raise TypeError(f"{op}: scale is a {type(scale).__name__}, expected a torch.Tensor")
    if scale.dtype != torch.float32 or scale.layout != torch.strided:
        raise TypeError(
            f"{op}: scale is {scale.dtype}, {scale.layout}, expected torch.float32, torch.strided"
        )
    if scale.numel() != 1:
        raise ValueError(f"{op}: scale has shape {tuple(scale.shape)}, expected one element")
    if scale.device != x.device:
        raise ValueError(f"{op}: scale is on {scale.device}, expected {x.device}, that of x")


def require_block(op: str, block: int | None) -> None:
    """Refuse what is not None and no size of blocks."""
    if block is None:
        return
    if isinstance(block, bool) or not isinstance(block, (int, torch.SymInt)):
        raise TypeError(f"{op}: block is a {type(block).__name__}, expected an int or None")
    if not BLOCKS[0] <= block <= BLOCKS[1] or block & (block - 1):
        raise ValueError(
            f"{op}: block is {block}, expected a power of two from {BLOCKS[0]} to {BLOCKS[1]}"
        )


def require_scale_ub(op: str, scale_ub: float | None) -> float | None:
    """Refuse what is not None and no positive number; return it."""
    if scale_ub is None:
        return None
    scale_ub = arguments.require_number(op, "scale_ub", scale_ub, "a float or None")
    if not scale_ub > 0.0:
        raise ValueError(f"{op}: scale_ub is {scale_ub}, expected a number > 0")
    return scale_ub


@dataclass(frozen=True)
class NormFp8:
    """An operator that gives a norm in float8_e4m3fn.

    rows        names of the tensors of x's shape: x and, if it is added to x, the residual
    parameters  names of those of one row's, which may be None
    dynamic     whether the scales are made of the result
    formula     (x or its sum, *parameters, *what follows them in the schema) -> y and the scales,
                in torch operations, for parameters and a scale that broadcast
    """

    name: str
    formula: Callable[..., Any]
    rows: tuple[str, ...] = ("x",)
    parameters: tuple[str, ...] = ("weight",)
    dynamic: bool = True

    def contract(self) -> contract.Contract:
        how = (
            "float eps, int? block, float? scale_ub" if self.dynamic else "Tensor scale, float eps"
        )
        args = (*(f"Tensor {r}" for r in self.rows), *(f"Tensor? {p}" for p in self.parameters))
        count = 1 + self.dynamic + self._adds
        return contract.Contract(
            name=self.name,
            args=", ".join((*args, how)),
            returns=f"({', '.join(['Tensor'] * count)})" if count > 1 else "Tensor",
            fake=self._fake,
            vmap=self._vmap,
        )

    def numbers(
        self, tensors: tuple[Any, ...], eps: Any, scale_ub: Any = None
    ) -> tuple[float, float | None]:
        """Return eps and scale_ub as operators take them; tensors: x, and others."""
        if eps is None:
            eps = arguments.EPS.get(getattr(tensors[0], "dtype", torch.bool))
        plain = type(eps) is float and eps >= 0.0 and (scale_ub is None or type(scale_ub) is float)
        if not plain and not operator.has_proxy(*tensors, eps, scale_ub):
            arguments.require_rows(self.name, tensors[0], dtypes=DTYPES)
            eps = arguments.require_eps(self.name, eps, tensors[0])
            scale_ub = require_scale_ub(self.name, scale_ub)
        return eps, scale_ub

    def validate(self, *args: Any) -> None:
        """Refuse what no implementation takes, naming the argument."""
        self._validate(*args)
        if self.dynamic:
            require_scale_ub(self.name, args[-1])
        arguments.require_eps(self.name, args[-3 if self.dynamic else -1], args[0])

    def _validate(self, *args: Any) -> None:
        """Refuse all but bad floats, on whose values a graph would depend."""
        rows, parameters, how = self._parts(args)
        x = rows[0]
        arguments.require_rows(self.name, x, dtypes=DTYPES)
        for name, t in zip(self.rows[1:], rows[1:], strict=True):
            arguments.require_twin(self.name, name, t, x)
        for name, t in zip(self.parameters, parameters, strict=True):
            arguments.require_weight(self.name, t, x, own=name)
        named = dict(zip((*self.rows, *self.parameters), (*rows, *parameters), strict=True))
        if self.dynamic:
            require_block(self.name, how[1])
        else:
            named["scale"] = how[0]
            require_scale(self.name, how[0], x)
        require_forward_only(self.name, **named)

    def triton(self, load: Callable[[], Any]) -> Kernels:
        """Return the kernels over load().fwd, which takes rows as matrices."""

        def run(*args: Any, wrap: Any = None) -> Any:
            self._validate(*args)
            rows, parameters, how = self._parts(args)
            if not self.dynamic:
                how = (dense(how[0]), *how[1:])
            tensors = (*map(as_rows, rows), *map(dense, parameters))
            found = load().fwd(*tensors, *how, wrap=wrap)
            if not self.dynamic:
                return found.view(rows[0].shape)
            shapes = self._shapes(rows[0], how[1])
            return tuple(t.view(shape) for t, shape in zip(found, shapes, strict=True))

        return Kernels(run=run)

    def eager(self, formula: Callable[..., Any]) -> Callable[..., Any]:
        """Return the formula with the checks and contiguous results."""

        def run(*args: Any) -> Any:
            self.validate(*args)
            found = formula(*args)
            return tuple(t.contiguous() for t in found) if self.dynamic else found.contiguous()

        return run

    @property
    def _adds(self) -> bool:
        return len(self.rows) > 1

    def _parts(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the rows, the parameters, and what comes after them."""
        first, second = len(self.rows), len(self.rows) + len(self.parameters)
        return args[:first], args[first:second], args[second:]

    def _shapes(self, x: Tensor, block: int | None) -> list[tuple[int, ...]]:
        """Return those of y, the scales and, if there is one, the sum."""
        *lead, n = x.shape
        count = 1 if block is None else (n + block - 1) // block
        return [tuple(x.shape), (*lead, count), tuple(x.shape)][: 2 + self._adds]

    def _fake(self, *args: Any) -> Any:
        self._validate(*args)
        rows, _, how = self._parts(args)
        x: Tensor = rows[0]
        if not self.dynamic:
            return x.new_empty(x.shape, dtype=torch.float8_e4m3fn)
        dtypes = (torch.float8_e4m3fn, torch.float32, x.dtype)
        shapes = self._shapes(x, how[1])
        return tuple(x.new_empty(s, dtype=d) for s, d in zip(shapes, dtypes, strict=False))

    def _vmap(self, op: Callable[..., Any]) -> Callable[..., Any]:
        def rule(info: Any, in_dims: Any, *args: Any) -> Any:
            pairs = list(zip(args, in_dims, strict=True))
            if info.batch_size:
                self._validate(*(unbatched(a, d) if isinstance(a, Tensor) else a for a, d in pairs))
            rows, shared, how = self._parts(tuple(pairs))
            batched = [move_batch_dim_to_front(t, d, info.batch_size) for t, d in rows]
            if all(d is None for _, d in (*shared, *how)):
                found = op(*batched, *(a for a, _ in (*shared, *how)))
            else:
                moved = [
                    move_weight_batch_to_front(t, d, batched[0].dim()) if d is not None else t
                    for t, d in shared
                ]
                found = self._formula(batched, moved, how, info.batch_size)
            return found, (0,) * len(found) if isinstance(found, tuple) else 0

        return rule

    def _formula(self, rows: list[Tensor], shared: list[Any], how: Any, batch: int) -> Any:
        """Return the operator with parameters or a scale of each element of the batch."""
        total = rows[0] + rows[1] if self._adds else rows[0]
        if self.dynamic:
            found: Any = self.formula(total, *shared, *(a for a, _ in how))
            return (*found, total) if self._adds else found
        (scale, dim), (eps, _) = how
        scale = move_batch_dim_to_front(scale, dim, batch).reshape(-1, *(1,) * (total.dim() - 1))
        return self.formula(total, *shared, scale, eps)
