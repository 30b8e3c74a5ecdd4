"""The contract of gated operators, y = f(a) * b, where a and b are two tensors or one, [a | b]."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuseline.core.inputs import arguments
from fuseline.core.registration import contract, operator

Pair = tuple[Tensor, Tensor]


def halves(packed: Tensor) -> Pair:
    """Return views of the two halves of the last dimension."""
    n = packed.shape[-1] // 2
    return packed[..., :n], packed[..., n:]


def sides(a: Tensor, b: Tensor | None) -> Pair:
    """Return a and b, which without b are the halves of a."""
    return halves(a) if b is None else (a, b)


@dataclass(frozen=True)
class Gated:
    """An operator y = f(a) * b.

    f         (a, *options) in torch operations that autograd, vmap and jvp can take apart
    options   what f takes beside a, in the schema
    require   (*options): refuses what f does not take
    """

    name: str
    f: Callable[..., Tensor]
    options: str = ""
    require: Callable[..., None] = lambda: None

    def contract(self) -> contract.Contract:
        return contract.Contract(
            name=self.name,
            args=f"Tensor a, Tensor? b{self.options}",
            bwd_args=f"Tensor dy, Tensor a, Tensor? b{self.options}",
            bwd_returns="(Tensor, Tensor)",
            fake=self._fake,
            fake_bwd=self._fake_bwd,
            decomposed=self.decomposed,
            gradient=contract.Gradient(("y",), ("a", "b")),
            vmap=operator.vmap_over_rows(self.validate),
        )

    def validate(self, a: Tensor, b: Tensor | None, *options: Any) -> None:
        """Refuse what no implementation takes."""
        arguments.require_tensor(self.name, a, "a")
        if b is not None:
            arguments.require_twin(self.name, "b", b, a, "a")
        elif a.dim() == 0 or a.shape[-1] % 2 != 0:
            raise ValueError(
                f"{self.name}: a has shape {tuple(a.shape)}, "
                "expected an even last dimension, which holds a and b, since b is None"
            )
        self.require(*options)

    def decomposed(self, a: Tensor, b: Tensor | None, *options: Any) -> Tensor:
        """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
        self.validate(a, b, *options)
        wide = torch.promote_types(a.dtype, torch.float32)
        gate, value = sides(a, b)
        return (self.f(gate.to(wide), *options) * value.to(wide)).to(a.dtype)

    def _result(self, a: Tensor, b: Tensor | None) -> Tensor:
        if b is not None:
            return torch.empty_like(a)
        return a.new_empty((*a.shape[:-1], a.shape[-1] // 2))

    def _fake(self, a: Tensor, b: Tensor | None, *options: Any) -> Tensor:
        self.validate(a, b, *options)
        return self._result(a, b)

    def _fake_bwd(self, dy: Tensor, a: Tensor, b: Tensor | None, *options: Any) -> Pair:
        self.validate(a, b, *options)
        shape = sides(a, b)[0].shape
        arguments.require_exactly(self.name, "dy", dy, shape, a.dtype, a.device)
        return torch.empty_like(a), a.new_empty((0,)) if b is None else torch.empty_like(a)
