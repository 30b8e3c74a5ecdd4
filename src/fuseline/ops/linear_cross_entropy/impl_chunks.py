"""linear_cross_entropy by chunks of rows: torch's products and cross_entropy's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fuseline.core import native
from fuseline.core.products.backend import flat
from fuseline.primitives.rms import statistics_dtype

_OPS = torch.ops.fuseline
# Rows of a chunk at least: with fewer, reading and writing dweight once a chunk takes a GPU longer
# than the product that is added to it.
LEAST_ROWS = {"cpu": 256, "cuda": 1024}
_TILE = 128  # of products' rows
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]


def unavailable(device_type: str) -> str | None:
    """Return why chunks cannot be computed on a device type, or None."""
    return native.why_no_kernel("fuseline::cross_entropy", device_type)


def _require_classes(target: Tensor, classes: int, ignore_index: int) -> None:
    """Refuse a target that is no class, where that is known at once: cross_entropy knows a chunk's
    rows alone.
    """
    if not target.is_cpu:
        return
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise RuntimeError(
            f"linear_cross_entropy: target has {int(target[row])} in row {row}, "
            f"expected 0 to {classes - 1} or ignore_index, {ignore_index}"
        )


def forward(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    ignore_index: int,
    reduction: str,
    *options: Any,
) -> Results:
    """Return the loss, each row's statistics ("none") and the targets' total, and what the sum's
    gradients of hidden, weight and bias are; what is not wanted has no elements.
    """
    *how, need_dhidden, need_dweight, need_dbias = options
    rows, classes = flat(hidden), target.reshape(-1)
    _require_classes(classes, weight.shape[0], ignore_index)
    apart = reduction == "none"
    needs = (need_dhidden, need_dweight, need_dbias)
    sums = _Gradients(rows, weight, bias, (False,) * 3 if apart else needs)
    wide = statistics_dtype(hidden)
    losses = rows.new_empty((rows.shape[0],), dtype=wide)
    stats = rows.new_empty((rows.shape[0] if apart else 0, 2), dtype=wide)
    one, totals = rows.new_ones((), dtype=wide), []
    for part, z in _logits(rows, weight, bias):
        t = classes[part]
        losses[part], kept, total = _OPS._cross_entropy_fwd(z, t, None, ignore_index, "none", *how)
        totals.append(total)
        if apart:
            stats[part] = kept
        elif any(needs):
            saved = (t, None, kept, total)
            sums.add(part, _OPS._cross_entropy_bwd(one, z, *saved, ignore_index, "sum", *how))
    total = torch.stack(totals)
    total = torch.stack((total[:, 0].sum(), total[0, 1]))
    if apart:
        loss = losses.view(target.shape)
        stats = stats.view(*target.shape, 2)
    else:
        loss = losses.sum(dtype=torch.float64)
        loss = (loss / total[0] if reduction == "mean" else loss).to(wide)
    return loss, stats, total, *sums.found(hidden)


def backward(
    dloss: Tensor,
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None,
    stats: Tensor,
    total: Tensor,
    dhidden: Tensor,
    dweight: Tensor,
    dbias: Tensor,
    ignore_index: int,
    reduction: str,
    *options: Any,
) -> Gradients:
    """Return the gradients of hidden, weight and bias: those of the sum times dloss, or by chunks
    of logits that are computed again.
    """
    *how, need_dhidden, need_dweight, need_dbias = options
    needs = (need_dhidden, need_dweight, need_dbias)
    if reduction != "none":
        scale = dloss
        if reduction == "mean":  # of none that counts, whose gradients are 0, by 1
            scale = (dloss / total[0].clamp(min=1)).to(dloss.dtype)
        # Rows that do not count are 0 for a dloss of NaN, too.
        of_rows = torch.where(target != ignore_index, scale, 0).unsqueeze(-1)
        of_all = scale.view(1)  # a scalar would be rounded to the dtype of what it multiplies
        return (
            _scaled(dhidden, of_rows if need_dhidden else of_all, hidden.dtype),
            _scaled(dweight, of_all, hidden.dtype),
            _scaled(dbias, of_all, hidden.dtype),
        )
    rows, classes, dlosses = flat(hidden), target.reshape(-1), dloss.reshape(-1)
    _require_classes(classes, weight.shape[0], ignore_index)
    found = _Gradients(rows, weight, bias, needs)
    for part, z in _logits(rows, weight, bias):
        saved = (classes[part], None, stats.view(-1, 2)[part], total)
        dz = _OPS._cross_entropy_bwd(dlosses[part], z, *saved, ignore_index, reduction, *how)
        found.add(part, dz)
    return found.rounded(hidden)


class _Gradients:
    """The gradients that are needed, added up over chunks: in fp32 of half types but for hidden's,
    whose rows lie in one chunk each.
    """

    def __init__(
        self, rows: Tensor, weight: Tensor, bias: Tensor | None, needs: tuple[bool, bool, bool]
    ) -> None:
        wide = statistics_dtype(rows)
        self._rows, self._weight = rows, weight
        self._dhidden = rows.new_empty(rows.shape) if needs[0] else None
        self._dweight = weight.new_empty(weight.shape, dtype=wide) if needs[1] else None
        self._dbias = weight.new_zeros(weight.shape[:1], dtype=wide) if needs[2] else None
        self._empty = True

    def add(self, part: slice, dz: Tensor) -> None:
        """Add what a chunk's gradient of the logits makes."""
        if self._dhidden is not None:
            torch.mm(dz, self._weight, out=self._dhidden[part])
        if self._dweight is not None:
            _add_product(self._dweight, dz.mT, self._rows[part], 0 if self._empty else 1)
        if self._dbias is not None:
            self._dbias += dz.sum(0, dtype=self._dbias.dtype)
        self._empty = False

    def found(self, hidden: Tensor) -> Gradients:
        """Return the sums as they are, hidden's in its shape."""
        dhidden = None if self._dhidden is None else self._dhidden.view(hidden.shape)
        dh, dw, db = (
            hidden.new_empty((0,)) if d is None else d
            for d in (dhidden, self._dweight, self._dbias)
        )
        return dh, dw, db

    def rounded(self, hidden: Tensor) -> Gradients:
        """Return the gradients of hidden's dtype."""
        dhidden, dweight, dbias = self.found(hidden)
        return dhidden, dweight.to(hidden.dtype), dbias.to(hidden.dtype)


def _add_product(to: Tensor, a: Tensor, b: Tensor, beta: int) -> None:
    """Write beta * to + a @ b over `to`, added up in its dtype."""
    if a.dtype == to.dtype:
        torch.addmm(to, a, b, beta=beta, out=to)
    elif to.is_cuda:
        torch.addmm(to, a, b, out_dtype=to.dtype, beta=beta, out=to)
    else:  # torch has no product of half types that is fp32 there
        torch.addmm(to, a.to(to.dtype), b.to(to.dtype), beta=beta, out=to)


def _logits(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
    """Give chunks of rows and their logits, each of which is written over the one before."""
    step = rows_of_chunk(rows.shape[0], rows.shape[1], rows.device.type)
    memory = rows.new_empty((step, weight.shape[0]))
    for start in range(0, max(rows.shape[0], 1), step):
        of_chunk = rows[start : start + step]
        z = memory[: of_chunk.shape[0]]
        if bias is None:
            torch.mm(of_chunk, weight.mT, out=z)
        else:
            torch.addmm(bias, of_chunk, weight.mT, out=z)
        yield slice(start, start + step), z


def rows_of_chunk(rows: int, columns: int, device_type: str) -> int:
    """Return how many rows of logits are made at once.

    Half as many as hidden has columns, so that they take half of the weight's memory, but at least
    LEAST_ROWS; of chunks as long as each other, in whole tiles.
    """
    most = max(LEAST_ROWS[device_type], columns // 2)
    chunks = max(-(-rows // most), 1)
    tiles = -(-rows // (chunks * _TILE))
    return max(min(tiles * _TILE, rows), 1)


def _scaled(sums: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return sums * scale, rounded once."""
    return torch.mul(sums, scale, out=sums.new_empty(sums.shape, dtype=dtype))
