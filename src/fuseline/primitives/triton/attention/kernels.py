"""What the attention kernels share: the band of visible keys, tiles, scores, and dropout.

A key j is visible to a query i if i - left <= j <= i + right: causal attention has right = 0, a
sliding window both. LEFT and RIGHT say whether there is such a bound.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.rms import float64_of

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# Kinds of masks.
NO_MASK, BOOL_MASK, FLOAT_MASK = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def sequence(cu_ptr, batch, length):
    """Return where a sequence starts in its packed tensor, and its length."""
    start = tl.zeros((), tl.int64)
    if cu_ptr is not None:
        first = tl.load(cu_ptr + batch)
        start = first.to(tl.int64)
        length = (tl.load(cu_ptr + batch + 1) - first).to(tl.int32)
    return start, length


@triton.jit
def keys_of(
    first, last, n_keys, left, right, LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return the keys that the queries first to last need: (begin, whole, rest, end).

    Blocks from begin to whole and from rest to end are partly visible, those between wholly, to
    each of the queries.
    """
    begin = tl.zeros((), tl.int32)
    whole = tl.zeros((), tl.int32)
    end = n_keys
    rest = n_keys
    if RIGHT:
        end = tl.minimum(n_keys, last + right + 1)
        rest = tl.minimum(n_keys, first + right + 1)
    rest = rest // BLOCK * BLOCK
    if LEFT:
        begin = tl.maximum(first - left, 0) // BLOCK * BLOCK
        whole = (tl.maximum(last - left, 0) + BLOCK - 1) // BLOCK * BLOCK
    none = rest <= whole
    whole = tl.where(none, begin, whole)
    rest = tl.where(none, begin, rest)
    return begin, whole, rest, end


@triton.jit
def queries_of(
    first, last, n_queries, left, right, inside,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the queries that see the keys first to last: (begin, whole, rest, end) as `keys_of`.

    inside: whether all of the block's keys exist; otherwise no block is wholly visible.
    """
    begin = tl.zeros((), tl.int32)
    whole = tl.zeros((), tl.int32)
    end = n_queries
    rest = n_queries
    if RIGHT:
        begin = tl.maximum(first - right, 0) // BLOCK * BLOCK
        whole = (tl.maximum(last - right, 0) + BLOCK - 1) // BLOCK * BLOCK
    if LEFT:
        end = tl.minimum(n_queries, last + left + 1)
        rest = tl.minimum(n_queries, first + left + 1)
    rest = rest // BLOCK * BLOCK
    none = (rest <= whole) | (not inside)
    whole = tl.where(none, begin, whole)
    rest = tl.where(none, begin, rest)
    return begin, whole, rest, end


@triton.jit
def rows_of(ptr, b, h, start, step_b, step_h, step, VEC: tl.constexpr, TMA: tl.constexpr):
    """Return where the rows of a head begin, from row `start`; a descriptor as it is."""
    if not TMA:
        ptr += tl.cast(b, tl.int64) * (step_b // VEC * VEC)
        ptr += tl.cast(h, tl.int64) * (step_h // VEC * VEC)
        ptr += start * (step // VEC * VEC)
    return ptr


@triton.jit
def load_tile(
    ptr, b, h, start, count, stride, ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    VEC: tl.constexpr, BOUND: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """Return ROWS rows from `start`, 0 beyond D columns and, with BOUND, beyond `count` rows.

    ptr: of `rows_of`; b and h are for descriptors, which give 0 beyond the rows there are.
    """
    if TMA:
        tile = tl.reshape(ptr.load([b, h, start, 0]), (ROWS, BLOCK_D))
    else:
        step = stride // VEC * VEC
        rows = tl.arange(0, ROWS)
        dims = tl.arange(0, BLOCK_D)
        ptrs = ptr + tl.cast(start, tl.int64) * step + (rows[:, None] * step + dims[None, :])
        if BOUND and D < BLOCK_D:
            live = (start + rows < count)[:, None] & (dims < D)[None, :]
            tile = tl.load(ptrs, live, other=0.0)
        elif BOUND:
            tile = tl.load(ptrs, (start + rows < count)[:, None], other=0.0)
        elif D < BLOCK_D:
            tile = tl.load(ptrs, (dims < D)[None, :], other=0.0)
        else:
            tile = tl.load(ptrs)
    return tile


@triton.jit
def store_tile(
    ptr, value, start, count, stride, ROWS: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    VEC: tl.constexpr,
):  # fmt: skip
    """Store the rows of a tile from `start` up to `count`, D columns of each."""
    step = stride // VEC * VEC
    rows = tl.arange(0, ROWS)
    dims = tl.arange(0, BLOCK_D)
    ptrs = ptr + tl.cast(start, tl.int64) * step + (rows[:, None] * step + dims[None, :])
    live = (start + rows < count)[:, None] & (dims < D)[None, :]
    tl.store(ptrs, value.to(ptr.dtype.element_ty), live)


@triton.jit
def scores(
    product, row_start, rows, col_start, cols, scale, seen, masking,
    MASK: tl.constexpr, MASK_VEC: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    BOUND: tl.constexpr,
):  # fmt: skip
    """Return scale * product plus the mask; with BOUND, -Inf where a key is not visible.

    rows, cols: the queries and keys within the tile, each two-dimensional, as the product has them.
    seen: (n_queries, n_keys, left, right). masking: the mask's pointer and strides of rows and
    columns. The scale holds the factor that `power` expects. MASK_VEC: what divides a mask's row
    stride, and its last stride is 1; or 0.
    """
    n_rows, n_cols, left, right = seen
    mask_ptr, mask_m, mask_n = masking
    z = product * scale
    i = row_start + rows
    j = col_start + cols
    if MASK != NO_MASK:
        mask_ptr += tl.cast(row_start, tl.int64) * mask_m + tl.cast(col_start, tl.int64) * mask_n
        if MASK_VEC > 0:
            at = mask_ptr + (rows * (mask_m // MASK_VEC * MASK_VEC) + cols)
        else:
            at = mask_ptr + (rows * mask_m + cols * mask_n)
        live = i < n_rows
        if BOUND:
            live = live & (j < n_cols)
        if MASK == BOOL_MASK:
            z = tl.where(tl.load(at, live, other=0) != 0, z, float("-inf"))
        else:
            z += tl.load(at, live, other=0.0).to(tl.float32)
    if BOUND:
        visible = (i < n_rows) & (j < n_cols)
        if RIGHT:
            visible = visible & (j <= i + right)
        if LEFT:
            visible = visible & (j >= i - left)
        z = tl.where(visible, z, float("-inf"))
    return z


@triton.jit
def power(z, MASK: tl.constexpr):
    """Return e^z with a float mask, else 2^z: the scores then hold the factor LOG2E."""
    # The lowest finite number, which masks hold, would overflow by that factor.
    return tl.exp2(z * LOG2E) if MASK == FLOAT_MASK else tl.exp2(z)


@triton.jit
def score_scale(scale_high, scale_low, NEGATIVE: tl.constexpr, MASK: tl.constexpr):
    """Return what `scores` multiplies by, from the bits of the scale: |scale|, with the factor
    LOG2E where `power` needs it.

    Where the scale is negative, the queries are negated instead: a row's largest product is then
    its largest score.
    """
    scale = float64_of(scale_high, scale_low)
    if NEGATIVE:
        scale = -scale
    return (scale if MASK == FLOAT_MASK else scale * LOG2E).to(tl.float32)


@triton.jit
def kept(draw, head, row_start, col_start, ROWS: tl.constexpr, COLS: tl.constexpr):
    """Return which elements of a tile (ROWS, COLS) dropout keeps.

    Element (i, j) of matrix `head` has number j % 4 of the Philox counter (j / 4, i, head, 0).
    draw: (pointer to the seed or None, the seed if there is no pointer, threshold).
    """
    seed_ptr, seed, threshold = draw
    if seed_ptr is not None:
        seed = tl.load(seed_ptr)
    limit = tl.full((), threshold, tl.int32).to(tl.uint32, bitcast=True)
    i = (row_start + tl.arange(0, ROWS))[:, None]
    fours = (col_start // 4 + tl.arange(0, COLS // 4))[None, :]
    zero = (i + fours) * 0
    a, b, c, d = tl.philox(seed, fours + zero, i + zero, head + zero, zero)
    pairs = tl.join(tl.join(a >= limit, c >= limit), tl.join(b >= limit, d >= limit))
    return tl.reshape(pairs, (ROWS, COLS))
