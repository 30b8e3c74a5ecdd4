// The kernel of row_cuda.cuh for rows that begin anywhere or end within 16 bytes, and are no longer
// than a block's registers: the rows of a block come and go through shared memory, as one run of
// memory where they lie side by side.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"
#include "fuseline/cuda/runs.cuh"

namespace fuseline::rows {

// The columns of a thread, one of 2^log_width of a row of n: those that it has in row_kernel where
// that takes rows of n, or else elements side by side with the others'.
template <typename Shape>
__device__ __forceinline__ typename Shape::Span short_span(int lane, int n, int log_width) {
  if (n % Shape::VEC == 0) return row_span<Shape>(lane, n, log_width);
  return Shape::Span::spread(0, n, lane, 1 << log_width, n % 2 == 0);
}

// Owns the rows of a block, 2^log_width threads each, or one. What comes of an input, and what goes
// of an output, has `pitch` bytes of shared memory, and of that a row of its own address
// `row_pitch`.
template <typename Op, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_short_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                     int log_width, int pitch, int row_pitch) {
  using T = typename Op::T;
  using Y = Written<Op>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS;
  constexpr bool IS_BLOCK = Shape::IS_BLOCK;
  static_assert(Op::OUTPUTS <= Op::INPUTS, "outputs go where inputs came");
  extern __shared__ __align__(128) unsigned char smem[];
  const int thread = threadIdx.x, threads = blockDim.x, width = 1 << log_width;
  const int lane = thread & (width - 1), n = static_cast<int>(a.n);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * (threads >> log_width);
  const int64_t index = begin + (thread >> log_width);
  const int rows_here =
      static_cast<int>(min(a.rows - begin, static_cast<int64_t>(threads >> log_width)));
  const bool active = index < a.rows;
  const T* at_row[Op::INPUTS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
    const bool dense = a.stride[k] == n;
    const T* const from = a.in[k] + (dense ? begin : index) * a.stride[k];
    const Run<T> run(smem + k * pitch + (dense ? 0 : (thread >> log_width) * row_pitch), from);
    at_row[k] = run.at + (dense ? (thread >> log_width) * n : 0);
    if (dense) {
      run.load(from, rows_here * n, thread, threads);
    } else if (active) {
      run.load(from, n, lane, width);
    }
  }
  end_batch();
  wait_for_batch<0>();
  __syncthreads();
  auto at = short_span<Shape>(lane, n, log_width);
  if (!active) at.count = 0;
  typename Op::Row row = op.begin(a, active ? index : 0);
  Packs<Op, VEC> held[ITEMS];
  load_shared<Op>(at_row, at, held);
  rounds<0>(op, row, held, n, at, [&](const auto& part, auto round) {
    return row_part<IS_BLOCK, Shape::MAX_THREADS, decltype(round)::value>(part, width);
  });
  if (active && lane == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    __syncthreads();  // all have read what came
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const auto y = op.out(row, held[i], op.template some_operands<VEC>(at, i, 0));
#pragma unroll
      for (int k = 0; k < Op::OUTPUTS; ++k) {
        Y* const to = Run<Y>(smem + k * pitch, a.out.of[k] + begin * n).at;
        store_pack(to + (thread >> log_width) * n, output(y, k), at, i);
      }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Op::OUTPUTS; ++k) {
      Y* const to = a.out.of[k] + begin * n;
      Run<Y>(smem + k * pitch, to).store(to, rows_here * n, thread, threads);
    }
    if constexpr (Op::HAS_FALLBACK) {
      __syncthreads();  // it writes over what has been stored
      ran_fallback<IS_BLOCK>(op, a, row, index, active, lane, width);
    }
  }
}

}  // namespace fuseline::rows
