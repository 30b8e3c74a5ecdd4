"""An implementation of all products from what one library can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core import native

Needs = tuple[bool, bool, bool]
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]
# Of a tensor, in oneDNN, which computes torch's GELU on a CPU.
_MOST_DIMENSIONS = 12


def in_pairs(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return what torch multiplies on a CPU: of half types with one column of zeros more, if odd.

    oneDNN's kernels for processors with AMX take columns by two, and the last of an odd number with
    what lies behind its row, times 0: a NaN there spread to the row (torch 2.13).
    """
    if a.is_cuda or a.dtype.itemsize > 2 or a.shape[-1] % 2 == 0:
        return a, b
    return F.pad(a, (0, 1)), F.pad(b, (0, 0, 0, 1))


class Backend(ABC):
    """What multiplies. Batches of a and b are equal, or b is one matrix.

    name       of the implementation
    checks     whether it refuses by itself what an operator's validate() refuses
    is_traced  whether a compiler's graph traces through it, or else calls it as it is
    """

    name: str
    checks = False
    is_traced = False

    def tracing(self, wrap: Any) -> Backend:
        """Return the one for a compiler's graph that traces through (contract.Kernels)."""
        return self

    @abstractmethod
    def unavailable(self, device_type: str) -> str | None:
        """Return why it cannot run on a device type, or None."""

    def refusal(self, direction: str, a: Tensor, b: Tensor, activation: str | None) -> str | None:
        """Return why it does not serve a call, from metadata alone, or None."""
        return None

    def gains_by(self, activation: str | None) -> bool:
        """Return whether "auto" takes it in order, without a rule, for an activation."""
        return True

    @abstractmethod
    def forward(
        self, a: Tensor, b: Tensor, bias: Tensor | None, activation: str | None, save: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return activation(a @ b + bias) and, to `save`, what GELU was of."""

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Return a @ b: torch's own, unless there is another."""
        return torch.matmul(*in_pairs(a, b)).contiguous()

    def product_and_sums(self, a: Tensor, b: Tensor, of_a: bool) -> tuple[Tensor, Tensor]:
        """Return a @ b of two matrices and, summed over what is multiplied away, a or b."""
        return self.product(a, b), a.sum(1) if of_a else b.sum(0)

    def through(
        self, dy: Tensor, saved: Tensor, activation: str, sums: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the gradient through an activation, and its sums over rows where these are wanted.

        saved  y of "relu", what GELU was of else
        """
        if dy.is_cuda and native.status().has("cuda"):  # in one pass over memory
            g, dbias = torch.ops.fuseline._activation_bwd(dy, saved, activation, sums)
            return g, dbias if sums else None
        if activation == "relu":
            g = torch.ops.aten.threshold_backward(dy, saved, 0)
        else:
            each = (t if t.dim() <= _MOST_DIMENSIONS else flat(t) for t in (dy, saved))
            g = torch.ops.aten.gelu_backward(*each, approximate=activation).view(dy.shape)
        return g, flat(g).sum(0) if sums else None

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
            g, dbias = self.through(dy, saved, str(activation), needs[2])
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


def are_aligned(a: Tensor, b: Tensor) -> bool:
    """Whether all rows, or all columns, of a, of b, and those of a @ b begin at multiples of 16
    bytes, as far as strides tell.
    """
    pack = 16 // a.element_size()
    return b.shape[-1] % pack == 0 and _begins(a, pack) and _begins(b, pack)


def _begins(t: Tensor, pack: int) -> bool:
    *batches, down, along = t.stride()
    apart = down if along == 1 else along
    return 1 in (down, along) and not any(s % pack for s in (*batches, apart, t.storage_offset()))


def is_transposed(b: Tensor) -> bool:
    """Whether the columns of b are contiguous, as of a Linear's weight: then those of db are."""
    return not b.is_contiguous() and b.mT.is_contiguous()


def like_factor(b: Tensor) -> Tensor:
    """Return what the gradient of b is laid out as."""
    transposed = b.dim() > 1 and is_transposed(b)
    return b.mT.new_empty(b.mT.shape).mT if transposed else b.new_empty(b.shape)


def gelu(h: Tensor, approximate: str) -> Tensor:
    """Return GELU of any number of dimensions."""
    if h.dim() <= _MOST_DIMENSIONS:
        return F.gelu(h, approximate=approximate)
    return F.gelu(flat(h), approximate=approximate).view(h.shape)


def flat(t: Tensor) -> Tensor:
    """Return all leading dimensions as rows."""
    if t.dim() == 2:
        return t
    shape = (prod(t.shape[:-1]), t.shape[-1])  # -1 says nothing of rows without elements
    try:
        return t.view(shape)
    except RuntimeError:
        native.count_copy()
        return t.reshape(shape)
