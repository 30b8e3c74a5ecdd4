"""The forward kernel of attention: online softmax over blocks of keys."""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.attention.kernels import (
    FLOAT_MASK,
    LN2,
    NO_MASK,
    kept,
    keys_of,
    load_tile,
    power,
    rows_of,
    score_scale,
    scores,
    sequence,
    store_tile,
)
from fuseline.primitives.triton.rms import float64_of

_COUNTS = [
    "seed", "heads", "group", "tiles", "n_queries", "n_keys", "left", "right",
    "scale_high", "scale_low",
    "q_b", "q_h", "q_m", "k_b", "k_h", "k_n", "v_b", "v_h", "v_n",
    "out_b", "out_h", "out_m", "lse_b", "lse_h", "mask_b", "mask_h", "mask_m", "mask_n",
    "threshold", "factor_high", "factor_low",
]  # fmt: skip


@triton.jit
def _blocks(
    sums, q, k_ptr, v_ptr, start, stop, row_start, scale, b, kh, head, k_n, v_n,
    seen, masking, draw,
    D: tl.constexpr, MASK: tl.constexpr, MASK_VEC: tl.constexpr, DROP: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, VEC: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BOUND: tl.constexpr,
):  # fmt: skip
    """Return the sums over the keys so far, those from start to stop added.

    sums: of values, (BLOCK_M, BLOCK_D), and of powers, and the largest scores, (BLOCK_M,).
    """
    acc, total, most = sums
    n_keys = seen[1]
    rows = tl.arange(0, BLOCK_M)[:, None]
    cols = tl.arange(0, BLOCK_N)[None, :]
    for col_start in tl.range(start, stop, BLOCK_N):
        k = load_tile(
            k_ptr, b, kh, col_start, n_keys, k_n, BLOCK_N, D, BLOCK_D, VEC, BOUND, TMA
        )  # fmt: skip
        product = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        if MASK == NO_MASK and not BOUND:
            higher = tl.maximum(most, tl.max(product, 1) * scale)
            p = tl.exp2(product * scale - higher[:, None])
            shrink = tl.exp2(most - higher)
        else:
            z = scores(
                product, row_start, rows, col_start, cols, scale, seen, masking,
                MASK, MASK_VEC, LEFT, RIGHT, BOUND,
            )  # fmt: skip
            higher = tl.maximum(most, tl.max(z, 1))
            # Where nothing was visible so far, the powers of -Inf are to be 0.
            base = tl.where(higher == float("-inf"), 0.0, higher)
            p = power(z - base[:, None], MASK)
            shrink = power(most - base, MASK)
        total = total * shrink + tl.sum(p, 1)
        most = higher
        acc = acc * shrink[:, None]
        if DROP:
            p = tl.where(kept(draw, head, row_start, col_start, BLOCK_M, BLOCK_N), p, 0.0)
        v = load_tile(
            v_ptr, b, kh, col_start, n_keys, v_n, BLOCK_N, D, BLOCK_D, VEC, BOUND, TMA
        )  # fmt: skip
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, total, most


@triton.jit(do_not_specialize=_COUNTS)
def fwd_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, out_ptr, lse_ptr, cu_q_ptr, cu_k_ptr, seed_ptr,
    seed, heads, group, tiles, n_queries, n_keys, left, right, scale_high, scale_low,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, out_b, out_h, out_m, lse_b, lse_h,
    mask_b, mask_h, mask_m, mask_n, threshold, factor_high, factor_low,
    D: tl.constexpr, MASK: tl.constexpr, MASK_VEC: tl.constexpr, DROP: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, NEGATIVE: tl.constexpr, VEC: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Process BLOCK_M queries of one head: read them and the keys and values that they see once,
    write their rows of out and lse.

    TMA: q, k and v are tensor descriptors of (1, 1, rows, BLOCK_D).
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
    k_ptr = rows_of(k_ptr, b, kh, start_k, k_b, k_h, k_n, VEC, TMA)
    v_ptr = rows_of(v_ptr, b, kh, start_k, v_b, v_h, v_n, VEC, TMA)
    if MASK != NO_MASK:
        mask_ptr += b.to(tl.int64) * mask_b + h.to(tl.int64) * mask_h
    q = load_tile(q_ptr, b, h, row_start, n_queries, q_m, BLOCK_M, D, BLOCK_D, VEC, True, TMA)
    if NEGATIVE:
        q = (-q.to(tl.float32)).to(q.dtype)
    scale = score_scale(scale_high, scale_low, NEGATIVE, MASK)
    sums = (
        tl.zeros((BLOCK_M, BLOCK_D), tl.float32),
        tl.zeros((BLOCK_M,), tl.float32),
        tl.full((BLOCK_M,), float("-inf"), tl.float32),
    )
    seen = (n_queries, n_keys, left, right)
    masking = (mask_ptr, mask_m, mask_n)
    draw = (seed_ptr, seed, threshold)
    last = tl.minimum(row_start + BLOCK_M, n_queries) - 1
    begin, whole, rest, end = keys_of(row_start, last, n_keys, left, right, LEFT, RIGHT, BLOCK_N)
    if LEFT:
        sums = _blocks(
            sums, q, k_ptr, v_ptr, begin, whole, row_start, scale, b, kh, head, k_n, v_n,
            seen, masking, draw, D, MASK, MASK_VEC, DROP, LEFT, RIGHT, VEC, TMA, PRECISION,
            BLOCK_M, BLOCK_N, BLOCK_D, True,
        )  # fmt: skip
    sums = _blocks(
        sums, q, k_ptr, v_ptr, whole, rest, row_start, scale, b, kh, head, k_n, v_n,
        seen, masking, draw, D, MASK, MASK_VEC, DROP, LEFT, RIGHT, VEC, TMA, PRECISION,
        BLOCK_M, BLOCK_N, BLOCK_D, False,
    )  # fmt: skip
    acc, total, most = _blocks(
        sums, q, k_ptr, v_ptr, rest, end, row_start, scale, b, kh, head, k_n, v_n,
        seen, masking, draw, D, MASK, MASK_VEC, DROP, LEFT, RIGHT, VEC, TMA, PRECISION,
        BLOCK_M, BLOCK_N, BLOCK_D, True,
    )  # fmt: skip
    inverse = tl.where(total == 0.0, 0.0, 1.0 / total)
    if DROP:
        inverse *= float64_of(factor_high, factor_low).to(tl.float32)
    out_ptr = rows_of(out_ptr, b, h, start_q, out_b, out_h, out_m, VEC, False)
    out = acc * inverse[:, None]
    store_tile(out_ptr, out, row_start, n_queries, out_m, BLOCK_M, D, BLOCK_D, VEC)
    lse = most + tl.log(total) if MASK == FLOAT_MASK else (most + tl.log2(total)) * LN2
    lse_ptr += b.to(tl.int64) * lse_b + h.to(tl.int64) * lse_h + start_q + row_start
    rows = tl.arange(0, BLOCK_M)
    tl.store(lse_ptr + rows, lse, row_start + rows < n_queries)
