"""An implementation of all products from what one library can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from fuseline.core import contract, native
from fuseline.core.products.product import Product, is_transposed

Needs = tuple[bool, bool, bool]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


class Backend(ABC):
    """What multiplies. Batches of a and b are equal, or b is one matrix.

    checks  whether it refuses by itself what an operator's validate() refuses
    """

    checks = False

    @abstractmethod
    def forward(
        self, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, save: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return activation(a @ b + bias) and, to `save`, what GELU was of."""

    @abstractmethod
    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b."""

    def product_and_sums(self, a: Tensor, b: Tensor, of_a: bool) -> tuple[Tensor, Tensor]:
        """Return a @ b of two matrices and, summed over what is multiplied away, a or b."""
        return self.product(a, b), a.sum(1) if of_a else b.sum(0)

    def gradients(
        self,
        dy: Tensor,
        a: Tensor,
        b: Tensor,
        saved: Tensor | None,
        activation: str | None,
        needs: Needs,
    ) -> Gradients:
        """Return those gradients of a, b and the bias that are needed.

        saved  y of "relu", what GELU was of else, None without an activation
        """
        g, da, db, dbias = dy, None, None, None
        if saved is not None:
            g, dbias = through(dy, saved, str(activation), needs[2])
        if needs[0]:
            da = self.product(g, b.mT)
        if needs[1]:
            x, dh = (a, g) if b.dim() > 2 else (flat(a), flat(g))
            transposed = is_transposed(b)
            pair = (dh.mT, x) if transposed else (x.mT, dh)
            if needs[2] and dbias is None and b.dim() == 2:
                db, dbias = self.product_and_sums(*pair, transposed)
            else:
                db = self.product(*pair)
            db = db.mT if transposed else db
        if needs[2] and dbias is None:
            dbias = flat(g).sum(0)
        return da, db, dbias


def kernels(product: Product, backend: Backend) -> contract.Kernels:
    """Return the functions of one operator by a backend."""
    gelu = product.activation == "gelu"

    def run(*args: Any) -> Tensor:
        return forward(args, False)[0]

    def fwd(*args: Any) -> tuple[Tensor, Tensor | None]:
        return forward(args, True)

    def forward(args: tuple[Any, ...], save: bool) -> tuple[Tensor, Tensor | None]:
        if not backend.checks:
            product.validate(*args)
        return backend.forward(*product.of(*args), save)

    def bwd(dy: Tensor, a: Tensor, b: Tensor, *args: Any) -> tuple[Tensor, ...]:
        saved, *rest = args if product.activation else (None, *args)
        activation = rest[0] if gelu else product.activation or None
        needs = (*rest[gelu:], False)[:3]
        found = backend.gradients(dy, a, b, saved, activation, needs)
        return tuple(a.new_empty((0,)) if t is None else t for t in found[: 2 + product.biased])

    return contract.Kernels(run, fwd if gelu else None, bwd)


def through(dy: Tensor, saved: Tensor, activation: str, sums: bool) -> tuple[Tensor, Tensor | None]:
    """Return the gradient through an activation, and its sums over rows where these are wanted.

    saved  y of "relu", what GELU was of else
    """
    if dy.is_cuda and native.status().has("cuda"):  # in one pass over memory
        g, dbias = torch.ops.fuseline._activation_bwd(dy, saved, activation, sums)
        return g, dbias if sums else None
    if activation == "relu":
        g = torch.ops.aten.threshold_backward(dy, saved, 0)
    else:
        g = torch.ops.aten.gelu_backward(dy, saved, approximate=activation)
    return g, flat(g).sum(0) if sums else None


def flat(t: Tensor) -> Tensor:
    """Return all leading dimensions as rows."""
    if t.dim() == 2:
        return t
    try:
        return t.view(-1, t.shape[-1])
    except RuntimeError:
        native.count_copy()
        return t.reshape(-1, t.shape[-1])
