// The kernel of row_cuda.cuh for rows that begin anywhere or end within 16 bytes, and are no longer
// than a block's registers: they come and go by single elements, or by two.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"

namespace fuseline::rows {

// The columns of a thread, one of 2^log_width of a row of n: those that it has in row_kernel; or,
// if SPREAD, elements side by side with those of the other lanes, pairs of them where n is even.
template <typename Shape, bool SPREAD>
__device__ __forceinline__ typename Shape::Span short_span(int lane, int n, int log_width) {
  using Span = typename Shape::Span;
  if constexpr (!SPREAD) {
    return row_span<Shape>(lane, n, log_width);
  } else if constexpr (Shape::IS_BLOCK) {
    constexpr int STEP = kWarp * Shape::VEC;
    const int share = ((n - 1) / (Shape::VEC << log_width) + 1) * STEP;  // of a warp
    const int begin = lane / kWarp * share;
    return Span::spread(begin, min(n, begin + share), lane % kWarp, kWarp, n % 2 == 0);
  } else {
    return Span::spread(0, n, lane, 1 << log_width, n % 2 == 0);
  }
}

// A thread's packs of rows in memory. All are on their way before one is waited for.
template <bool IN_PAIRS, typename Op, int VEC, int ITEMS>
__device__ __forceinline__ void load_short(const typename Op::T* const (&rows)[Op::INPUTS],
                                           const Span<VEC, false>& at,
                                           Packs<Op, VEC> (&held)[ITEMS]) {
  using T = typename Op::T;
  const T nothing = round_to<T>(Op::nothing());
  std::conditional_t<IN_PAIRS, Pack<T, VEC>, Loose<T, VEC>> coming[Op::INPUTS][ITEMS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) put(coming[k][i], v, nothing);
      if (at(i)) load_pack<IN_PAIRS>(rows[k], at, i, coming[k][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      if constexpr (IN_PAIRS) held[i].v[k] = unpack<typename Op::S>(coming[k][i]);
      if constexpr (!IN_PAIRS) held[i].v[k] = unpack<typename Op::S>(coming[k][i].pack());
    }
  }
}

// Reads each row once, by 2^log_width threads. Addresses of elements that neighbouring lanes have
// are neighbours, so that an access of a warp is one of 64 bytes or more.
template <typename Op, typename Shape, bool SPREAD>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_short_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                     int log_width) {
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS;
  constexpr bool IS_BLOCK = Shape::IS_BLOCK;
  if constexpr (Shape::LOG_WIDTH != kLaunchSays) log_width = Shape::LOG_WIDTH;
  const int width = 1 << log_width, lane = threadIdx.x & (width - 1);
  const int64_t index = IS_BLOCK
                            ? blockIdx.x
                            : static_cast<int64_t>(blockIdx.x) * (Shape::MAX_THREADS >> log_width) +
                                  (threadIdx.x >> log_width);
  const bool active = index < a.rows;
  auto at = short_span<Shape, SPREAD>(lane, static_cast<int>(a.n), log_width);
  if (!active) at.count = 0;
  const typename Op::T* rows[Op::INPUTS];
  bool in_pairs = true;
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
    rows[k] = a.in[k] + index * a.stride[k];
    in_pairs = in_pairs && at.in_pairs(rows[k]);
  }
  typename Op::Row row = op.begin(a, active ? index : 0);
  Packs<Op, VEC> held[ITEMS];
  load_prepared(op, row, at, 0, held, [&](const auto& seen) {
    in_pairs ? load_short<true, Op>(rows, seen, held) : load_short<false, Op>(rows, seen, held);
  });
  rounds<0>(op, row, held, a.n, at, [&](const auto& part, auto round) {
    return row_part<IS_BLOCK, Shape::MAX_THREADS, decltype(round)::value>(part, width);
  });
  if (active && lane == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    if (ran_fallback<IS_BLOCK>(op, a, row, index, active, lane, width)) return;
    const auto to = a.out.at(index * a.n);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (!at(i)) break;
      const auto y = op.out(row, held[i], op.template some_operands<VEC>(at, i, 0));
#pragma unroll
      for (int k = 0; k < Op::OUTPUTS; ++k) {
        store_pack(to.of[k], output(y, k), at, i, at.in_pairs(to.of[k]));
      }
    }
  }
}

}  // namespace fuseline::rows
