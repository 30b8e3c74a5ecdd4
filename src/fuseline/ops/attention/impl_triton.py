"""Attention in Triton: softmax(scale * q k^T + mask) v without the matrix of scores in memory.

Any head dimension to 256, heads of q that share one of k and v, packed sequences. Operands are read
where they lie if their last stride is 1. What depends on metadata alone is computed once for each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fuseline.core import native
from fuseline.core.products.cublaslt import tf32
from fuseline.ops.attention.impl_args import Call, Grads, readable
from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.attention.backward import (
    PITCH,
    keys_kernel,
    queries_kernel,
    rows_kernel,
)
from fuseline.primitives.triton.attention.forward import fwd_kernel
from fuseline.primitives.triton.attention.kernels import FLOAT_MASK
from fuseline.primitives.triton.attention.mask import mask_kernel
from fuseline.primitives.triton.attention.plan import (
    Form,
    Ints,
    Mask,
    Options,
    Tile,
    Tiles,
    tiles_of,
)
from fuseline.primitives.triton.launch import Launch
from fuseline.primitives.triton.rows import divide_up, power_of_2, vec_of

# Offsets inside a tile are of 32 bits: no tile has more rows than 2^8.
_WIDEST_STEP = 1 << 23
_INT32 = 1 << 31


class Packed(NamedTuple):
    """Sequences of several lengths, one after the other.

    cu_q, cu_k   where each starts, and the end: int32, (sequences + 1,)
    max_q, max_k  the longest lengths
    """

    cu_q: Tensor
    cu_k: Tensor
    max_q: int
    max_k: int


class Draw(NamedTuple):
    """Dropout's seed, a number or a tensor of int64 that holds it."""

    number: int = 0
    tensor: Tensor | None = None


class How(NamedTuple):
    """How a call is launched, beside what the operator's arguments say.

    wrap   what a kernel goes through before its launch
    tiles  in place of those of the table
    tma    whether operands are read through descriptors; None: where that can be
    """

    wrap: Wrap | None = None
    tiles: Tiles | None = None
    tma: bool | None = None


NO_DROPOUT, USUAL = Draw(), How()


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    options: Options,
    draw: Draw = NO_DROPOUT,
    packed: Packed | None = None,
    how: How = USUAL,
) -> tuple[Tensor, Tensor]:
    """Return out, as q in shape, dtype and layout, and lse of fp32, (batch, heads, queries).

    q: (batch, heads, queries, D), k and v: (batch, heads / n, keys, D); packed sequences have a
    batch of 1. mask: broadcasts to the scores; True where a key is seen, or a summand of any
    floating type. A query that sees nothing has out 0 and lse -Inf.
    """
    like = q
    q, k, v = _readable(q), _readable(k), _readable(v)
    out = torch.empty_like(q)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    if out.numel() == 0:
        return _as(like, q, out), lse
    call = _call((q, k, v, out), mask, options, draw, packed, how)
    launch = (_forward if how.wrap is None else _forward.__wrapped__)(call.form, how.tiles)
    call.run(launch, q, k, v, call.mask, out, lse, *call.packing)
    return _as(like, q, out), lse


def fwd_of(c: Call, wrap: Wrap | None, packed: Packed | None = None) -> tuple[Tensor, Tensor]:
    """Return out and lse of a call of the operator."""
    how = USUAL if wrap is None else How(wrap)
    return fwd(c.q, c.k, c.v, c.mask, _options(c), _draw(c), packed, how)


def _options(c: Call) -> Options:
    return Options(c.factor, *c.band, c.dropout)


def _draw(c: Call) -> Draw:
    return NO_DROPOUT if c.dropout == 0.0 else Draw(c.seed or 0, c.seed_tensor)


@lru_cache(maxsize=1024)
def _forward(form: Form, tiles: Tiles | None) -> Launch:
    tile = (tiles or tiles_of(form)).fwd
    heads, queries = form.q[1], form.q[2]
    count = divide_up(form.most[0], tile.block_m)
    lse = (0 if form.lengths else heads * queries, queries)
    numbers, grid = form.counts(count, lse), (count * form.batch * heads,)
    blocks = form.blocks(tile)[:3]
    return Launch(fwd_kernel, grid, numbers, form.constants(tile), form.place[1], blocks)


class _Call(NamedTuple):
    """A call's form, and what its launches need besides."""

    form: Form
    mask: Tensor | None
    draw: Draw
    packed: Packed | None
    wrap: Wrap | None

    @property
    def packing(self) -> tuple[Tensor | None, Tensor | None]:
        return (self.packed.cu_q, self.packed.cu_k) if self.packed else (None, None)

    def run(self, launch: Launch, *tensors: Tensor | None) -> None:
        launch((*tensors, self.draw.tensor), self.draw.number, wrap=self.wrap)


def _call(
    tensors: tuple[Tensor, ...],
    mask: Tensor | None,
    options: Options,
    draw: Draw,
    packed: Packed | None,
    how: How,
) -> _Call:
    """Return the call of q, k, v, and what else lies by queries or by keys."""
    q, k, *_ = tensors
    strides = tuple(t.stride() for t in tensors)
    of_mask = None
    if mask is not None:
        mask = _readable_mask(mask)
        of_mask = Mask(mask.dtype, mask.shape, mask.stride())
    tma, place = False, (-1, False)
    if how.wrap is None:  # else there are no addresses
        index = q.get_device()
        aligned = not any(t.data_ptr() % 16 for t in tensors)
        tma = (_has_tma(index) if how.tma is None else how.tma) and aligned
        tma = tma and packed is None and _describable(q, k.shape[2], strides[:4])
        place = (index, aligned and (mask is None or mask.data_ptr() % 16 == 0))
    seed = "tensor" if draw.tensor is not None else ""
    form = Form(
        q.dtype,
        q.shape,
        k.shape,
        strides,
        of_mask,
        options,
        packed and (packed.cu_q.shape[0] - 1, packed.max_q, packed.max_k),
        _precision(q.dtype),
        seed if -_INT32 <= draw.number < _INT32 else "wide",
        tma,
        place,
    )
    return _Call(form, mask, draw, packed, how.wrap)


@lru_cache(maxsize=64)
def _has_tma(index: int) -> bool:
    return index >= 0 and torch.cuda.get_device_capability(index) >= (9, 0)


def _describable(q: Tensor, keys: int, strides: tuple[Ints, ...]) -> bool:
    """Say whether there can be tensor descriptors, and blocks of them as wide as rows."""
    d, size = q.shape[3], q.element_size()
    return (
        d >= 16
        and keys > 0
        and d == power_of_2(d)
        and all(step > 0 and step * size % 16 == 0 for s in strides for step in s[:3])
    )


def _precision(dtype: torch.dtype) -> str:
    """Return how Triton is to multiply fp32: as torch multiplies matrices of it, but that the
    products of three of TF32 stand for those of fp32, whose digits they have.
    """
    if dtype != torch.float32:
        return "ieee"
    return "tf32" if tf32(dtype) else "tf32x3"


def _readable(t: Tensor) -> Tensor:
    """Return the tensor itself if the kernels can read it where it lies, else a copy."""
    if t.stride(2) < _WIDEST_STEP:
        return readable(t)
    native.count_copy()
    return t.resolve_neg().contiguous()


def _as(like: Tensor, read: Tensor, made: Tensor) -> Tensor:
    """Return what was made as `read`, which was read for `like`, in the layout of `like`."""
    return made if read is like else torch.empty_like(like).copy_(made)


def _readable_mask(mask: Tensor) -> Tensor:
    """Return the mask, of bytes for bools; a copy if the kernels cannot read it where it lies."""
    if mask.dtype == torch.bool:
        mask = mask.view(torch.uint8)
    if mask.is_neg() or max(mask.stride()[-2:], default=0) >= _WIDEST_STEP:
        native.count_copy()
        mask = mask.resolve_neg().contiguous()
    return mask


class _Backward(NamedTuple):
    """The launches of a backward.

    rows   that of what each query has a number of, two planes of `size`
    """

    rows: Launch
    size: int
    keys: Launch
    queries: Launch


def bwd(
    dout: Tensor,
    out: Tensor,
    lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    options: Options,
    mask_gradient: bool = False,
    draw: Draw = NO_DROPOUT,
    packed: Packed | None = None,
    how: How = USUAL,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return dq, dk, dv and, if wanted, dmask, each as what it is the gradient of.

    Everything but `dout`, the gradient of out, is what `fwd` took and gave. Every sum has one
    order; no memory but the results and two numbers for each query.
    """
    if q.numel() == 0 or k.numel() == 0:
        dmask = torch.zeros_like(mask) if mask is not None and mask_gradient else None
        return torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v), dmask
    like = (q, k, v)
    q, k, v, dout, out = (_readable(t) for t in (q, k, v, dout, out))
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    call = _call((q, k, v, dout, out, dq, dk, dv), mask, options, draw, packed, how)
    plan = (_backward if how.wrap is None else _backward.__wrapped__)(call.form, how.tiles)
    planes = lse.new_empty(2 * plan.size)
    plan.rows((out, dout, lse.contiguous(), planes, call.packing[0]), wrap=how.wrap)
    read = (q, k, v, call.mask, dout, planes)
    call.run(plan.keys, *read, dk, dv, *call.packing)
    call.run(plan.queries, *read, dq, *call.packing)
    wanted = mask is not None and mask_gradient
    dmask = _dmask(call, read, mask.shape) if mask is not None and wanted else None
    dq, dk, dv = map(_as, like, (q, k, v), (dq, dk, dv))
    return dq, dk, dv, dmask


def bwd_of(
    dout: Tensor,
    out: Tensor,
    lse: Tensor,
    c: Call,
    need_dmask: bool,
    wrap: Wrap | None,
    packed: Packed | None = None,
) -> Grads:
    """Return the gradients of a call of the operator, that of the mask empty if not wanted."""
    operands, how = (c.q, c.k, c.v, c.mask), USUAL if wrap is None else How(wrap)
    made = bwd(dout, out, lse, *operands, _options(c), need_dmask, _draw(c), packed, how)
    dmask = made[3]
    return *made[:3], c.q.new_empty((0,)) if dmask is None else dmask


@lru_cache(maxsize=1024)
def _backward(form: Form, tiles: Tiles | None) -> _Backward:
    tiles = tiles or tiles_of(form)
    (*_, dout, out, dq, dk, dv), (heads, aligned) = form.strides, (form.q[1], form.place[1])
    rows, size = _rows_of(form)
    launch = _rows(form, (out, dout), rows, size)

    def plan(
        kernel: Any, tile: Tile, length: int, block: int, heads: int, *written: Ints
    ) -> Launch:
        count = divide_up(length, block)
        numbers = (*form.counts(count, (*rows, size)), *form.places(*written))
        grid, meta = (count * form.batch * heads,), form.constants(tile, *written)
        return Launch(kernel, grid, numbers, meta, aligned, form.blocks(tile))

    (queries, keys), (_, by_keys, by_queries) = form.most, tiles
    return _Backward(
        launch,
        size,
        plan(keys_kernel, by_keys, keys, by_keys.block_n, form.k[1], dk, dv),
        plan(queries_kernel, by_queries, queries, by_queries.block_m, heads, dq),
    )


def _rows_of(form: Form) -> tuple[tuple[int, int], int]:
    """Return the steps of batch and head in a plane of what each query has a number of, and the
    plane's size.
    """
    pitch, heads = PITCH.value, form.q[1]
    if form.lengths:  # each sequence begins at a multiple of PITCH
        head = (form.q[2] // pitch + form.batch) * pitch
        return (0, head), head * heads
    head = divide_up(form.most[0], pitch) * pitch
    return (head * heads, head), head * heads * form.batch


def _rows(form: Form, strides: tuple[Ints, Ints], rows: tuple[int, int], size: int) -> Launch:
    """Return the launch of the kernel that writes them; strides: of out and dout."""
    heads, queries, longest = form.q[1], form.q[2], form.most[0]
    count = divide_up(longest, PITCH.value)
    steps = form.places(*strides)
    meta = {
        "D": form.q[3],
        "VEC": vec_of(form.dtype, *steps),
        "FLOAT": form.kind == FLOAT_MASK.value,
        "BLOCK_D": form.block_d,
        "num_warps": 4 if form.q[3] <= 128 else 8,
    }
    lse = (0 if form.lengths else heads * queries, queries)
    numbers = (heads, count, longest, *steps, *lse, *rows, size)
    return Launch(rows_kernel, (count * form.batch * heads,), numbers, meta, form.place[1])


def _dmask(call: _Call, tensors: tuple[Any, ...], own: torch.Size) -> Tensor:
    """Return the gradient of a mask of shape `own`: what it was broadcast along is summed in order.

    tensors: those that the kernel reads.
    """
    form = call.form._replace(tma=False)
    mask: Tensor = tensors[3]
    batch, heads, (queries, keys) = form.batch, form.q[1], form.most
    shape = (1,) * (4 - len(own)) + tuple(own)
    sum_m, sum_n = shape[2] == 1 < queries, shape[3] == 1 < keys
    tile = tiles_of(form).queries
    # Matrices of dmask: those of the mask, or all, to be added up afterwards, where each is small.
    whole = sum_m or sum_n
    matrices = (batch, heads) if whole else shape[:2]
    made = mask.new_empty(
        (*matrices, 1 if sum_m else queries, 1 if sum_n else keys),
        dtype=torch.float32 if whole else mask.dtype,
    )
    across = 1 if sum_n else divide_up(keys, tile.block_n)
    count = (1 if sum_m else divide_up(queries, tile.block_m)) * across
    members = heads // matrices[1]
    rows, size = _rows_of(form)
    numbers = form.counts(count, (*rows, size))
    numbers += (matrices[1], batch // matrices[0] * members, members)
    meta = form.constants(tile) | {"SUM_M": sum_m, "SUM_N": sum_n}
    grid = (count * matrices[0] * matrices[1],)
    call.run(Launch(mask_kernel, grid, numbers, meta, False), *tensors, made)
    if whole:
        summed = [d for d in (0, 1) if shape[d] == 1 < made.shape[d]]
        made = (made.sum(summed, keepdim=True) if summed else made).to(mask.dtype)
    return made.view(own)
