// The forward of rows that blocks of a persistent grid hold together (sm_90 and later).
#pragma once

#include "fuseline/rms_cuda_fwd.cuh"
#include "fuseline/rms_cuda_grid.cuh"

namespace fuseline::rms {

// What the exchanging warp tells the others of a row.
template <typename S>
struct FwdTurn {
  S rstd, largest;
};

// The fallback for a row, by each block on its own: all of them decide by the same sum.
template <typename T, typename W, typename Y>
__device__ void grid_fallback(const FwdArgs<T, W, false, Y>& a, int64_t row, Stat<T> largest,
                              const GridBlock& block, double* scratch) {
  const FallbackScale scaled(largest);
  const double part = exact_square_sum(a.h(row), threadIdx.x, a.n, blockDim.x, scaled);
  const double sum = row_sum<true>(part, blockDim.x, scratch);
  const ExactRstd exact(scaled, sum / static_cast<double>(a.n), a.eps);
  exact_normalise(a, row, block.begin + threadIdx.x, block.begin + block.cols, blockDim.x, exact);
}

// Reads the rows once, ahead of need; writes y and, if requested, rstd.
template <typename T, typename W, typename Shape, typename Y>
__global__ void __launch_bounds__(Shape::BLOCK, Shape::PER_SM)
    fwd_grid_kernel(const __grid_constant__ FwdArgs<T, W, false, Y> a,
                    const __grid_constant__ GridPlan plan) {
#if __CUDA_ARCH__ >= 900
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, STEP = Shape::STEP;
  extern __shared__ __align__(16) unsigned char smem[];
  __shared__ Mbarrier barriers[kMaxSlots];
  __shared__ double warps[2][Shape::WARPS], scratch[kWarp];
  __shared__ FwdTurn<S> turns[2];
  const GridBlock block(plan, a.rows, a.n);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, first = threadIdx.x * VEC;
  const bool exchanges = warp == Shape::WARPS;
  const int cols = exchanges ? 0 : block.cols - first;  // of the slice, from `first` on
  const int slice_bytes = plan.slice * static_cast<int>(sizeof(T));
  const auto load_async = [&](int turn) {
    if (lane > 0 || turn >= block.rows) return;
    const int slot = turn % plan.slots;
    barriers[slot].copy(smem + slot * slice_bytes,
                        a.x + block.row(plan, turn) * a.x_stride + block.begin,
                        block.cols * static_cast<unsigned>(sizeof(T)));
  };
  if (threadIdx.x < kMaxSlots) barriers[threadIdx.x].init(1);
  __syncthreads();
  if (exchanges) fill(plan, load_async);
  const auto divide = divisor(a.load_scale());
  Pack<W, VEC> weights[ITEMS];
  load_weight(a.weight ? a.weight + block.begin + first : nullptr, 0, STEP, cols, weights);

  RingSlot in, out;
  for (int turn = 0; turn < block.rows + plan.lag; ++turn) {
    const int64_t row = block.row(plan, turn - plan.lag);  // that is written in this turn
    if (exchanges) {
      refill(plan, turn, load_async);
      const double sum = exchange(plan, block, turn, warps[(turn + 1) % 2]);
      const double square = sum / static_cast<double>(a.n);
      const S largest = static_cast<S>(largest_of(square, a.eps));
      const S rstd = inverse_sqrt<T>(static_cast<S>(square + a.eps));
      if (lane == 0) {
        turns[turn % 2] = {rstd, largest};
        if (turn >= plan.lag && a.rstd && block.rank == 0) a.rstd[row] = rstd;
      }
    } else if (turn < block.rows) {
      const T* const x = reinterpret_cast<const T*>(smem + in.index * slice_bytes) + first;
      barriers[in.index].wait(in.parity);
      in.next(plan.slots);
      S sum = 0;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (i * STEP < cols) sum += square_sum(load<T, VEC>(x + i * STEP));
      }
      const double all = lanes_sum(static_cast<double>(sum), kWarp);
      if (lane == 0) warps[turn % 2][warp] = all;
    }
    __syncthreads();
    if (turn < plan.lag) continue;

    const FwdTurn<S> now = turns[turn % 2];
    const T* const x = reinterpret_cast<const T*>(smem + out.index * slice_bytes) + first;
    out.next(plan.slots);
    if (needs_fallback(now.largest)) {
      grid_fallback(a, row, now.largest, block, scratch);
      continue;
    }
    Y* const y = a.y + row * a.n + block.begin + first;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (i * STEP >= cols) continue;
      store<Y, VEC>(y + i * STEP, normalise<Y>(load<T, VEC>(x + i * STEP), now.rstd, weights[i],
                                               a.weight_offset, divide));
    }
  }
#endif
}

}  // namespace fuseline::rms
