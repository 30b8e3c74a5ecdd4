"""The gradient of an additive mask: dS, summed in order over what the mask was broadcast along."""

from __future__ import annotations

import triton
import triton.language as tl

from fuseline.primitives.triton.attention.backward import COUNTS, ds_of, first_row, load_rows
from fuseline.primitives.triton.attention.kernels import (
    keys_of,
    load_tile,
    rows_of,
    score_scale,
)
from fuseline.primitives.triton.rms import float64_of

_MASK_COUNTS = [*COUNTS, "mask_heads", "members", "member_heads"]


@triton.jit(do_not_specialize=_MASK_COUNTS)
def mask_kernel(
    q_ptr, k_ptr, v_ptr, mask_ptr, dout_ptr, rows_ptr, dmask_ptr, seed_ptr,
    seed, heads, group, tiles, n_queries, n_keys, left, right, scale_high, scale_low,
    q_b, q_h, q_m, k_b, k_h, k_n, v_b, v_h, v_n, dout_b, dout_h, dout_m, row_b, row_h, planes,
    mask_b, mask_h, mask_m, mask_n, threshold, factor_high, factor_low,
    mask_heads, members, member_heads,
    D: tl.constexpr, MASK: tl.constexpr, MASK_VEC: tl.constexpr, DROP: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, NEGATIVE: tl.constexpr, VEC: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    SUM_M: tl.constexpr, SUM_N: tl.constexpr,
):  # fmt: skip
    """Process a tile of one matrix of dmask, (1 if SUM_M else n_queries, 1 if SUM_N else n_keys):
    read what `members` matrices of scores need, in order, write the sum of their dS.

    Matrix (b, h) of dmask is the sum of (b + i / member_heads, h + i % member_heads), i < members.
    """
    col_tiles = 1 if SUM_N else (n_keys + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0) % tiles
    matrix = tl.program_id(0) // tiles
    row_start, row_stop = tl.zeros((), tl.int32), n_queries
    if not SUM_M:
        row_start = tile // col_tiles * BLOCK_M
        row_stop = tl.minimum(row_start + BLOCK_M, n_queries)
    col_start, col_stop = tl.zeros((), tl.int32), n_keys
    if not SUM_N:
        col_start = tile % col_tiles * BLOCK_N
        col_stop = tl.minimum(col_start + BLOCK_N, n_keys)
    scale = score_scale(scale_high, scale_low, NEGATIVE, MASK)
    factor = float64_of(factor_high, factor_low).to(tl.float32)
    seen = (n_queries, n_keys, left, right)
    draw = (seed_ptr, seed, threshold)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for member in range(members):
        b = matrix // mask_heads + member // member_heads
        h = matrix % mask_heads + member % member_heads
        q_head = rows_of(q_ptr, b, h, 0, q_b, q_h, q_m, VEC, False)
        dout_head = rows_of(dout_ptr, b, h, 0, dout_b, dout_h, dout_m, VEC, False)
        k_head = rows_of(k_ptr, b, h // group, 0, k_b, k_h, k_n, VEC, False)
        v_head = rows_of(v_ptr, b, h // group, 0, v_b, v_h, v_n, VEC, False)
        first = first_row(b, h, 0, row_b, row_h, False)
        mask_head = mask_ptr + b.to(tl.int64) * mask_b + h.to(tl.int64) * mask_h
        masking = (mask_head, mask_m, mask_n)
        for i in range(row_start, row_stop, BLOCK_M):
            q = load_tile(q_head, b, h, i, n_queries, q_m, BLOCK_M, D, BLOCK_D, VEC, True, False)
            if NEGATIVE:
                q = (-q.to(tl.float32)).to(q.dtype)
            dout = load_tile(
                dout_head, b, h, i, n_queries, dout_m, BLOCK_M, D, BLOCK_D, VEC, True, False
            )
            lse = load_rows(rows_ptr, first, i, BLOCK_M, False)
            delta = load_rows(rows_ptr, first + planes, i, BLOCK_M, False)
            begin, _, _, end = keys_of(
                i, tl.minimum(i + BLOCK_M, n_queries) - 1, n_keys, left, right, LEFT, RIGHT, BLOCK_N
            )
            # Tiles start at multiples of BLOCK_N, as `begin` does.
            for j in range(tl.maximum(begin, col_start), tl.minimum(end, col_stop), BLOCK_N):
                k = load_tile(k_head, b, h, j, n_keys, k_n, BLOCK_N, D, BLOCK_D, VEC, True, False)
                v = load_tile(v_head, b, h, j, n_keys, v_n, BLOCK_N, D, BLOCK_D, VEC, True, False)
                total += ds_of(
                    q, k, v, dout, lse, delta, i, j, scale, factor, b * heads + h,
                    seen, masking, draw, MASK, MASK_VEC, DROP, LEFT, RIGHT, PRECISION,
                    BLOCK_M, BLOCK_N, True,
                )  # fmt: skip
    height = 1 if SUM_M else n_queries
    width = 1 if SUM_N else n_keys
    dmask_ptr += tl.cast(matrix, tl.int64) * height * width
    if SUM_M:
        total = tl.sum(total, 0)[None, :]
    if SUM_N:
        total = tl.sum(total, 1)[:, None]
    rows = row_start + tl.arange(0, 1 if SUM_M else BLOCK_M)
    cols = col_start + tl.arange(0, 1 if SUM_N else BLOCK_N)
    live = (rows < height)[:, None] & (cols < width)[None, :]
    at = dmask_ptr + rows.to(tl.int64)[:, None] * width + cols[None, :]
    tl.store(at, total.to(dmask_ptr.dtype.element_ty), live)
