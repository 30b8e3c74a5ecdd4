"""The backward kernels of attention: rows' numbers, dK and dV, and dQ.

With P = exp(S - lse) and delta = sum(dout * out): dV = P^T dout, dS = P * (dout V^T - delta),
dQ = scale * dS K, dK = scale * dS^T Q, dmask = dS.
"""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.attention.kernels import (
    FLOAT_MASK,
    LOG2E,
    NO_MASK,
    kept,
    keys_of,
    load_tile,
    power,
    queries_of,
    rows_of,
    score_scale,
    scores,
    sequence,
    store_tile,
)
from fuseline.primitives.triton.rms import float64_of

# What divides the start of a sequence in the buffer of rows' numbers: the most queries of a block.
PITCH = tl.constexpr(128)

_ROWS_COUNTS = [
    "heads", "tiles", "n_queries", "out_b", "out_h", "out_m", "dout_b", "dout_h", "dout_m",
    "lse_b", "lse_h", "row_b", "row_h", "planes",
]  # fmt: skip
COUNTS = [
    "seed", "heads", "group", "tiles", "n_queries", "n_keys", "left", "right",
    "scale_high", "scale_low",
    "q_b", "q_h", "q_m", "k_b", "k_h", "k_n", "v_b", "v_h", "v_n", "dout_b", "dout_h", "dout_m",
    "row_b", "row_h", "planes", "mask_b", "mask_h", "mask_m", "mask_n",
    "threshold", "factor_high", "factor_low",
]  # fmt: skip
_QUERIES_COUNTS = [*COUNTS, "dq_b", "dq_h", "dq_m"]
_KEYS_COUNTS = [*COUNTS, "dk_b", "dk_h", "dk_n", "dv_b", "dv_h", "dv_n"]


@triton.jit
def first_row(b, h, start_q, row_b, row_h, PACKED: tl.constexpr):
    """Return where the numbers of a head's rows begin in a plane of their buffer."""
    first = tl.cast(h, tl.int64) * (row_h // PITCH * PITCH)
    if PACKED:
        first += (start_q // PITCH + b) * PITCH
    else:
        first += tl.cast(b, tl.int64) * (row_b // PITCH * PITCH)
    return first


@triton.jit(do_not_specialize=_ROWS_COUNTS)
def rows_kernel(
    out_ptr, dout_ptr, lse_ptr, rows_ptr, cu_q_ptr, heads, tiles, n_queries,
    out_b, out_h, out_m, dout_b, dout_h, dout_m, lse_b, lse_h, row_b, row_h, planes,
    D: tl.constexpr, VEC: tl.constexpr, FLOAT: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Process PITCH queries of one head: read out, dout and lse, write a plane of lse, as `power`
    needs it, and a plane of delta = sum(out * dout).

    FLOAT: whether the mask is of floats. lse is +Inf for rows that saw nothing or do not exist:
    their powers are 0.
    """
    tile = tl.program_id(0) % tiles
    head = tl.program_id(0) // tiles
    b, h = head // heads, head % heads
    start_q, n_queries = sequence(cu_q_ptr, b, n_queries)
    row_start = tile * PITCH
    if row_start >= n_queries:
        return
    out_ptr = rows_of(out_ptr, b, h, start_q, out_b, out_h, out_m, VEC, False)
    dout_ptr = rows_of(dout_ptr, b, h, start_q, dout_b, dout_h, dout_m, VEC, False)
    out = load_tile(out_ptr, b, h, row_start, n_queries, out_m, PITCH, D, BLOCK_D, VEC, True, False)
    dout = load_tile(
        dout_ptr, b, h, row_start, n_queries, dout_m, PITCH, D, BLOCK_D, VEC, True, False
    )
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)
    rows = row_start + tl.arange(0, PITCH)
    lse_ptr += b.to(tl.int64) * lse_b + h.to(tl.int64) * lse_h + start_q
    lse = tl.load(lse_ptr + rows, rows < n_queries, other=float("inf"))
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    if not FLOAT:
        lse *= LOG2E
    rows_ptr += first_row(b, h, start_q, row_b, row_h, cu_q_ptr is not None)
    tl.store(rows_ptr + rows, lse)
    tl.store(rows_ptr + tl.cast(planes, tl.int64) + rows, delta)


@triton.jit
def load_rows(rows_ptr, first, start, ROWS: tl.constexpr, TMA: tl.constexpr):
    """Return the numbers of ROWS rows: of a plane, or a head's part of it."""
    if TMA:
        numbers = rows_ptr.load([(first + start).to(tl.int32)])
    else:
        numbers = tl.load(rows_ptr + first + start + tl.arange(0, ROWS))
    return numbers


@triton.jit
def _keys_blocks(
    sums, k, v, q_ptr, dout_ptr, rows_ptr, start, stop, first, planes, col_start, scale,
    factor, b, h, head, q_m, dout_m, seen, masking, draw,
    D: tl.constexpr, MASK: tl.constexpr, MASK_VEC: tl.constexpr, DROP: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, NEGATIVE: tl.constexpr, VEC: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, BOUND: tl.constexpr,
):  # fmt: skip
    """Return the sums, dk and dv, with what the queries from start to stop give to them."""
    dk, dv = sums
    n_queries = seen[0]
    rows = tl.arange(0, BLOCK_M)[None, :]
    cols = tl.arange(0, BLOCK_N)[:, None]
    for row_start in tl.range(start, stop, BLOCK_M):
        q = load_tile(q_ptr, b, h, row_start, n_queries, q_m, BLOCK_M, D, BLOCK_D, VEC, BOUND, TMA)
        if NEGATIVE:
            q = (-q.to(tl.float32)).to(q.dtype)
        product = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        z = scores(
            product, row_start, rows, col_start, cols, scale, seen, masking,
            MASK, MASK_VEC, LEFT, RIGHT, BOUND,
        )  # fmt: skip
        p = power(z - load_rows(rows_ptr, first, row_start, BLOCK_M, TMA)[None, :], MASK)
        dout = load_tile(
            dout_ptr, b, h, row_start, n_queries, dout_m, BLOCK_M, D, BLOCK_D, VEC, BOUND, TMA
        )
        dp = tl.dot(v, tl.trans(dout), input_precision=PRECISION)
        delta = load_rows(rows_ptr, first + planes, row_start, BLOCK_M, TMA)
        kept_p = p
        if DROP:
            keep = kept(draw, head, row_start, col_start, BLOCK_M, BLOCK_N)
            weight = tl.where(tl.trans(keep), factor, 0.0)
            kept_p = p * weight
            dp *= weight
        # All operands before the first product, which would otherwise be waited for.
        kept_p = kept_p.to(dout.dtype)
        ds = (p * (dp - delta[None, :])).to(q.dtype)
        dv = tl.dot(kept_p, dout, dv, input_precision=PRECISION)
        dk = tl.dot(ds, q, dk, input_precision=PRECISION)
    return dk, dv


@triton.jit(do_not_specialize=_KEYS_COUNTS)
def keys_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, dout_ptr, rows_ptr, dk_ptr, dv_ptr,
    cu_q_ptr, cu_k_ptr, seed_ptr,
    seed, heads, group, tiles, n_queries, n_keys, left, right, scale_high, scale_low,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, dout_b, dout_h, dout_m, row_b, row_h, planes,
    mask_b, mask_h, mask_m, mask_n, threshold, factor_high, factor_low,
    dk_b, dk_h, dk_n, dv_b, dv_h, dv_n,
    D: tl.constexpr, MASK: tl.constexpr, MASK_VEC: tl.constexpr, DROP: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, NEGATIVE: tl.constexpr, VEC: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Process BLOCK_N keys of one head of k: read q and dout of the heads that share it, write dk
    and dv.
    """
    tile = tl.program_id(0) % tiles
    key_head = tl.program_id(0) // tiles
    b, kh = key_head // (heads // group), key_head % (heads // group)
    start_q, n_queries = sequence(cu_q_ptr, b, n_queries)
    start_k, n_keys = sequence(cu_k_ptr, b, n_keys)
    col_start = tile * BLOCK_N
    if col_start >= n_keys:
        return
    k_ptr = rows_of(k_ptr, b, kh, start_k, k_b, k_h, k_n, VEC, TMA)
    v_ptr = rows_of(v_ptr, b, kh, start_k, v_b, v_h, v_n, VEC, TMA)
    k = load_tile(k_ptr, b, kh, col_start, n_keys, k_n, BLOCK_N, D, BLOCK_D, VEC, True, TMA)
    v = load_tile(v_ptr, b, kh, col_start, n_keys, v_n, BLOCK_N, D, BLOCK_D, VEC, True, TMA)
    scale = score_scale(scale_high, scale_low, NEGATIVE, MASK)
    factor = float64_of(factor_high, factor_low).to(tl.float32)
    sums = (tl.zeros((BLOCK_N, BLOCK_D), tl.float32), tl.zeros((BLOCK_N, BLOCK_D), tl.float32))
    last = tl.minimum(col_start + BLOCK_N, n_keys) - 1
    begin, whole, rest, end = queries_of(
        col_start, last, n_queries, left, right, col_start + BLOCK_N <= n_keys,
        LEFT, RIGHT, BLOCK_M,
    )  # fmt: skip
    seen = (n_queries, n_keys, left, right)
    draw = (seed_ptr, seed, threshold)
    for member in range(group):
        h = kh * group + member
        head = b * heads + h
        q_head = rows_of(q_ptr, b, h, start_q, q_b, q_h, q_m, VEC, TMA)
        dout_head = rows_of(dout_ptr, b, h, start_q, dout_b, dout_h, dout_m, VEC, TMA)
        first = first_row(b, h, start_q, row_b, row_h, cu_q_ptr is not None)
        masking = (mask_ptr, mask_m, mask_n)
        if MASK != NO_MASK:
            mask_head = mask_ptr + b.to(tl.int64) * mask_b + h.to(tl.int64) * mask_h
            masking = (mask_head, mask_m, mask_n)
        if RIGHT:
            sums = _keys_blocks(
                sums, k, v, q_head, dout_head, rows_ptr, begin, whole, first, planes,
                col_start, scale, factor, b, h, head, q_m, dout_m, seen, masking, draw,
                D, MASK, MASK_VEC, DROP, LEFT, RIGHT, NEGATIVE, VEC, TMA, PRECISION,
                BLOCK_M, BLOCK_N, BLOCK_D, True,
            )  # fmt: skip
        sums = _keys_blocks(
            sums, k, v, q_head, dout_head, rows_ptr, whole, rest, first, planes,
            col_start, scale, factor, b, h, head, q_m, dout_m, seen, masking, draw,
            D, MASK, MASK_VEC, DROP, LEFT, RIGHT, NEGATIVE, VEC, TMA, PRECISION,
            BLOCK_M, BLOCK_N, BLOCK_D, False,
        )  # fmt: skip
        sums = _keys_blocks(
            sums, k, v, q_head, dout_head, rows_ptr, rest, end, first, planes,
            col_start, scale, factor, b, h, head, q_m, dout_m, seen, masking, draw,
            D, MASK, MASK_VEC, DROP, LEFT, RIGHT, NEGATIVE, VEC, TMA, PRECISION,
            BLOCK_M, BLOCK_N, BLOCK_D, True,
        )  # fmt: skip
    dk, dv = sums
    # q came negated where the scale is negative.
    dk *= score_scale(scale_high, scale_low, NEGATIVE, FLOAT_MASK)
    dk_ptr = rows_of(dk_ptr, b, kh, start_k, dk_b, dk_h, dk_n, VEC, False)
    dv_ptr = rows_of(dv_ptr, b, kh, start_k, dv_b, dv_h, dv_n, VEC, False)
    store_tile(dk_ptr, dk, col_start, n_keys, dk_n, BLOCK_N, D, BLOCK_D, VEC)
    store_tile(dv_ptr, dv, col_start, n_keys, dv_n, BLOCK_N, D, BLOCK_D, VEC)


@triton.jit
def ds_of(
    q, k, v, dout, lse, delta, row_start, col_start, scale, factor, head, seen, masking, draw,
    MASK: tl.constexpr, MASK_VEC: tl.constexpr, DROP: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BOUND: tl.constexpr,
):  # fmt: skip
    """Return dS of a tile (BLOCK_M, BLOCK_N)."""
    rows = tl.arange(0, BLOCK_M)[:, None]
    cols = tl.arange(0, BLOCK_N)[None, :]
    product = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    z = scores(
        product, row_start, rows, col_start, cols, scale, seen, masking,
        MASK, MASK_VEC, LEFT, RIGHT, BOUND,
    )  # fmt: skip
    p = power(z - lse[:, None], MASK)
    dp = tl.dot(dout, tl.trans(v), input_precision=PRECISION)
    if DROP:
        dp = tl.where(kept(draw, head, row_start, col_start, BLOCK_M, BLOCK_N), dp * factor, 0.0)
    return p * (dp - delta[:, None])


@triton.jit
def _queries_blocks(
    dq, q, dout, lse, delta, k_ptr, v_ptr, start, stop, row_start, scale, factor, b, kh, head,
    k_n, v_n, seen, masking, draw,
    D: tl.constexpr, MASK: tl.constexpr, MASK_VEC: tl.constexpr, DROP: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, VEC: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BOUND: tl.constexpr,
):  # fmt: skip
    """Return dq with what the keys from start to stop give to it."""
    for col_start in tl.range(start, stop, BLOCK_N):
        k = load_tile(k_ptr, b, kh, col_start, seen[1], k_n, BLOCK_N, D, BLOCK_D, VEC, BOUND, TMA)
        v = load_tile(v_ptr, b, kh, col_start, seen[1], v_n, BLOCK_N, D, BLOCK_D, VEC, BOUND, TMA)
        ds = ds_of(
            q, k, v, dout, lse, delta, row_start, col_start, scale, factor, head,
            seen, masking, draw, MASK, MASK_VEC, DROP, LEFT, RIGHT, PRECISION,
            BLOCK_M, BLOCK_N, BOUND,
        )  # fmt: skip
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq


@triton.jit(do_not_specialize=_QUERIES_COUNTS)
def queries_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, dout_ptr, rows_ptr, dq_ptr, cu_q_ptr, cu_k_ptr, seed_ptr,
    seed, heads, group, tiles, n_queries, n_keys, left, right, scale_high, scale_low,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, dout_b, dout_h, dout_m, row_b, row_h, planes,
    mask_b, mask_h, mask_m, mask_n, threshold, factor_high, factor_low, dq_b, dq_h, dq_m,
    D: tl.constexpr, MASK: tl.constexpr, MASK_VEC: tl.constexpr, DROP: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, NEGATIVE: tl.constexpr, VEC: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Process BLOCK_M queries of one head: read them, dout, and the keys and values that they see,
    write dq.
    """
    tile = tl.program_id(0) % tiles
    head = tl.program_id(0) // tiles
    if RIGHT:  # the programs with the most keys first
        tile = tiles - 1 - tile
    b, h = head // heads, head % heads
    kh = h // group
    start_q, n_queries = sequence(cu_q_ptr, b, n_queries)
    start_k, n_keys = sequence(cu_k_ptr, b, n_keys)
    row_start = tile * BLOCK_M
    if row_start >= n_queries:
        return
    q_ptr = rows_of(q_ptr, b, h, start_q, q_b, q_h, q_m, VEC, TMA)
    dout_ptr = rows_of(dout_ptr, b, h, start_q, dout_b, dout_h, dout_m, VEC, TMA)
    k_ptr = rows_of(k_ptr, b, kh, start_k, k_b, k_h, k_n, VEC, TMA)
    v_ptr = rows_of(v_ptr, b, kh, start_k, v_b, v_h, v_n, VEC, TMA)
    if MASK != NO_MASK:
        mask_ptr += b.to(tl.int64) * mask_b + h.to(tl.int64) * mask_h
    q = load_tile(q_ptr, b, h, row_start, n_queries, q_m, BLOCK_M, D, BLOCK_D, VEC, True, TMA)
    if NEGATIVE:
        q = (-q.to(tl.float32)).to(q.dtype)
    dout = load_tile(
        dout_ptr, b, h, row_start, n_queries, dout_m, BLOCK_M, D, BLOCK_D, VEC, True, TMA
    )
    first = first_row(b, h, start_q, row_b, row_h, cu_q_ptr is not None)
    lse = load_rows(rows_ptr, first, row_start, BLOCK_M, TMA)
    delta = load_rows(rows_ptr, first + planes, row_start, BLOCK_M, TMA)
    scale = score_scale(scale_high, scale_low, NEGATIVE, MASK)
    factor = float64_of(factor_high, factor_low).to(tl.float32)
    dq = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    seen = (n_queries, n_keys, left, right)
    masking = (mask_ptr, mask_m, mask_n)
    draw = (seed_ptr, seed, threshold)
    last = tl.minimum(row_start + BLOCK_M, n_queries) - 1
    begin, whole, rest, end = keys_of(row_start, last, n_keys, left, right, LEFT, RIGHT, BLOCK_N)
    if LEFT:
        dq = _queries_blocks(
            dq, q, dout, lse, delta, k_ptr, v_ptr, begin, whole, row_start, scale, factor, b, kh,
            head, k_n, v_n, seen, masking, draw, D, MASK, MASK_VEC, DROP, LEFT, RIGHT, VEC, TMA,
            PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, True,
        )  # fmt: skip
    dq = _queries_blocks(
        dq, q, dout, lse, delta, k_ptr, v_ptr, whole, rest, row_start, scale, factor, b, kh,
        head, k_n, v_n, seen, masking, draw, D, MASK, MASK_VEC, DROP, LEFT, RIGHT, VEC, TMA,
        PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, False,
    )  # fmt: skip
    dq = _queries_blocks(
        dq, q, dout, lse, delta, k_ptr, v_ptr, rest, end, row_start, scale, factor, b, kh,
        head, k_n, v_n, seen, masking, draw, D, MASK, MASK_VEC, DROP, LEFT, RIGHT, VEC, TMA,
        PRECISION, BLOCK_M, BLOCK_N, BLOCK_D, True,
    )  # fmt: skip
    dq *= float64_of(scale_high, scale_low).to(tl.float32)
    if MASK != NO_MASK:  # a query that sees nothing, whatever NaN came of its powers of 0
        dq = tl.where((lse == float("inf"))[:, None], 0.0, dq)
    dq_ptr = rows_of(dq_ptr, b, h, start_q, dq_b, dq_h, dq_m, VEC, False)
    store_tile(dq_ptr, dq, row_start, n_queries, dq_m, BLOCK_M, D, BLOCK_D, VEC)
