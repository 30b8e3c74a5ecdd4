"""linear_cross_entropy by chunks of rows: torch's products and cross_entropy's kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuseline.core import native
from fuseline.core.device import triton_unavailable
from fuseline.core.products.backend import flat
from fuseline.core.registration.contract import triton_beside
from fuseline.primitives.rms import statistics_dtype

_OPS = torch.ops.fuseline
# Rows of a chunk at least, with few enough columns: with fewer, reading and writing dweight once a
# chunk takes a GPU longer than the product that is added to it.
LEAST_ROWS = {"cpu": 256, "cuda": 1024}
# Of logits, before they are cut. On a CPU as much as a core's cache keeps: 400000 x 8 x 10 fp32,
# forward and backward, took 114 ms by 256 rows a chunk, 36 by 25000.
LEAST_BYTES = {"cpu": 1 << 20, "cuda": 1 << 30}
_TILE = 128  # of products' rows
_ROW_BYTES = 16  # of which products want their operands' rows to be a multiple
_on_triton = triton_beside(__name__)
Results = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]


def unavailable(device_type: str) -> str | None:
    """Return why chunks cannot be computed on a device type, or None."""
    return native.why_no_kernel("fuseline::cross_entropy", device_type)


def require_classes(target: Tensor, classes: int, ignore_index: int) -> None:
    """Refuse a target that is no class, where that is known at once: cross_entropy knows a chunk's
    rows alone.
    """
    if not target.is_cpu:
        return
    target = target.reshape(-1)
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
    require_classes(target, weight.shape[0], ignore_index)
    apart = reduction == "none"
    needs = (need_dhidden, need_dweight, need_dbias)
    layer = _Layer(rows, weight, bias)
    sums = _Gradients(layer, (False,) * 3 if apart else needs)
    wide = statistics_dtype(hidden)
    losses = rows.new_empty((rows.shape[0],), dtype=wide)
    stats = rows.new_empty((rows.shape[0] if apart else 0, 2), dtype=wide)
    one, totals = rows.new_ones((), dtype=wide), []
    for part, z in layer.logits():
        t = classes[part]
        losses[part], kept, total = _OPS._cross_entropy_fwd(z, t, None, ignore_index, "none", *how)
        totals.append(total)
        if apart:
            stats[part] = kept
        elif any(needs):
            saved = (t, None, kept, total)
            _OPS._cross_entropy_bwd_(one, z, *saved, ignore_index, "sum", *how)
            sums.add(part)
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
    require_classes(target, weight.shape[0], ignore_index)
    layer = _Layer(rows, weight, bias)
    sums = _Gradients(layer, needs)
    for part, z in layer.logits():
        saved = (classes[part], None, stats.view(-1, 2)[part], total)
        _OPS._cross_entropy_bwd_(dlosses[part], z, *saved, ignore_index, reduction, *how)
        sums.add(part)
    dhidden, dweight, dbias = sums.found(hidden)
    return dhidden, dweight.to(hidden.dtype), dbias.to(hidden.dtype)


class _Layer:
    """A linear layer whose logits are made in chunks of rows, each over the one before.

    On a GPU logits of half types have classes to whole 16 bytes, where products are up to four
    times as fast; those that are not there have a weight of 0.
    """

    def __init__(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.rows, self.classes = rows, weight.shape[0]
        more = -self.classes % (_ROW_BYTES // rows.element_size()) if _is_padded(rows) else 0
        self.weight = F.pad(weight, (0, 0, 0, more)) if more else weight
        self.bias = F.pad(bias, (0, more)) if more and bias is not None else bias
        self.step, self.sums_dtype = rows_of_chunk(rows, weight), sums_dtype(rows, weight)
        self._memory = rows.new_empty((self.step, self.classes + more))

    def logits(self) -> Iterator[tuple[slice, Tensor]]:
        """Give chunks of rows and their logits."""
        for start in range(0, max(self.rows.shape[0], 1), self.step):
            part = slice(start, start + self.step)
            of_chunk = self.rows[part]
            z = self._memory[: of_chunk.shape[0]]
            if self.bias is None:
                torch.mm(of_chunk, self.weight.mT, out=z)
            else:
                torch.addmm(self.bias, of_chunk, self.weight.mT, out=z)
            yield part, z[:, : self.classes]

    def gradient(self, part: slice) -> Tensor:
        """Return what was written over a chunk's logits, 0 for classes that are not there."""
        dz = self._memory[: self.rows[part].shape[0]]
        dz[:, self.classes :] = 0  # of a row with NaN they are NaN
        return dz


class _Gradients:
    """The gradients that are needed, added up over chunks as `sums_dtype` says, but for hidden's,
    whose rows lie in one chunk each.
    """

    def __init__(self, layer: _Layer, needs: tuple[bool, bool, bool]) -> None:
        rows, weight = layer.rows, layer.weight
        self._layer, dtype = layer, layer.sums_dtype
        self._dhidden = rows.new_empty(rows.shape) if needs[0] else None
        self._dweight = weight.new_empty(weight.shape, dtype=dtype) if needs[1] else None
        self._dbias = weight.new_zeros(weight.shape[:1], dtype=dtype) if needs[2] else None
        self._empty = True

    def add(self, part: slice) -> None:
        """Add what the gradient of a chunk's logits makes."""
        dz = self._layer.gradient(part)
        if self._dhidden is not None:
            torch.mm(dz, self._layer.weight, out=self._dhidden[part])
        if self._dweight is not None:
            _add_product(self._dweight, dz.mT, self._layer.rows[part], 0 if self._empty else 1)
        if self._dbias is not None:
            self._dbias += dz.sum(0, dtype=self._dbias.dtype)
        self._empty = False

    def found(self, hidden: Tensor) -> Gradients:
        """Return the sums as they are, hidden's in its shape."""
        dhidden = None if self._dhidden is None else self._dhidden.view(hidden.shape)
        whole = slice(self._layer.classes)
        dweight, dbias = (None if d is None else d[whole] for d in (self._dweight, self._dbias))
        dh, dw, db = (hidden.new_empty((0,)) if d is None else d for d in (dhidden, dweight, dbias))
        return dh, dw, db


def _add_product(to: Tensor, a: Tensor, b: Tensor, beta: int) -> None:
    """Write beta * to + a @ b over `to`, added up in its dtype."""
    if a.dtype == to.dtype:
        torch.addmm(to, a, b, beta=beta, out=to)
    elif to.is_cuda:
        torch.addmm(to, a, b, out_dtype=to.dtype, beta=beta, out=to)
    else:  # torch has no product of half types that is fp32 there
        torch.addmm(to, a.to(to.dtype), b.to(to.dtype), beta=beta, out=to)


def _is_padded(rows: Tensor) -> bool:
    return rows.is_cuda and rows.element_size() == 2


def rows_of_chunk(rows: Tensor, weight: Tensor) -> int:
    """Return how many rows of logits are made at once, of a matrix of rows; by shapes alone.

    On a GPU so many that they take the memory of an fp32 sum of dweight, which several chunks need;
    on a CPU half of the weight's. LEAST_BYTES and LEAST_ROWS at least; of chunks as long as each
    other, in whole tiles.
    """
    (count, columns), classes = rows.shape, weight.shape[0]
    device, element = rows.device.type, rows.element_size()
    share = classes * columns * (4 if device == "cuda" else element // 2)
    most = max(share, LEAST_BYTES[device]) // max(classes * element, 1)
    most = max(most, LEAST_ROWS[device])
    chunks = max(-(-count // most), 1)
    tiles = -(-count // (chunks * _TILE))
    return max(min(tiles * _TILE, count), 1)


def sums_dtype(rows: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype that dweight and dbias are kept in until backward: fp32 of half types, but
    bf16, which has fp32's range, where one product of all rows gives them.
    """
    bf16 = rows.is_cuda and rows.dtype == torch.bfloat16
    whole = bf16 and rows_of_chunk(rows, weight) >= rows.shape[0]
    return rows.dtype if whole else statistics_dtype(rows)


def _scaled(sums: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return sums * scale, rounded once."""
    if sums.is_cuda and scale.numel() == 1 and triton_unavailable("cuda") is None:
        return _on_triton().scaled(sums, scale, dtype)  # type: ignore[no-any-return]
    return torch.mul(sums, scale, out=sums.new_empty(sums.shape, dtype=dtype))
