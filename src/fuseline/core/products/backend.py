"""An implementation of all products from what one library can do."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from fuseline.core import contract, native
from fuseline.core.products.product import Product, is_transposed


class Backend(Protocol):
    """What multiplies. Batches of a and b are equal, or b is one matrix."""

    def forward(
        self, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, save: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return activation(a @ b + bias) and, to `save`, what the activation was of."""

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b."""

    def product_and_sums(self, a: Tensor, b: Tensor, of_a: bool) -> tuple[Tensor, Tensor]:
        """Return a @ b of two matrices and, summed over what is multiplied away, a or b."""


def kernels(product: Product, backend: Backend) -> contract.Kernels:
    """Return the functions of one operator by a backend."""
    gelu = product.activation == "gelu"

    def run(*args: Any) -> Tensor:
        product.validate(*args)
        return backend.forward(*product.of(*args), False)[0]

    def fwd(*args: Any) -> tuple[Tensor, Tensor | None]:
        product.validate(*args)
        return backend.forward(*product.of(*args), True)

    def bwd(dy: Tensor, a: Tensor, b: Tensor, *args: Any) -> tuple[Tensor, ...]:
        need_da, need_db, *need_dbias = args[-2 - product.biased :]
        wants_sums = any(need_dbias)
        g, dbias = dy, None
        if product.activation:
            which = args[1] if gelu else "relu"
            g, dbias = through(dy, args[0], which, wants_sums)
        none = a.new_empty((0,))
        da = backend.product(g, b.mT) if need_da else none
        db = none
        if need_db:
            x, dh = (a, g) if b.dim() > 2 else (flat(a), flat(g))
            transposed = is_transposed(b)
            pair = (dh.mT, x) if transposed else (x.mT, dh)
            if wants_sums and dbias is None and b.dim() == 2:
                db, dbias = backend.product_and_sums(*pair, transposed)
            else:
                db = backend.product(*pair)
            db = db.mT if transposed else db
        if wants_sums and dbias is None:
            dbias = flat(g).sum(0)
        return (da, db, none if dbias is None else dbias)[: 2 + product.biased]

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
