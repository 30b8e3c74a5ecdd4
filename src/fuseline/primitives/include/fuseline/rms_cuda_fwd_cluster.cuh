// The forward of rows that a thread-block cluster holds together (sm_90 and later).
#pragma once

#include "fuseline/cluster.cuh"
#include "fuseline/rms_cuda_fwd.cuh"

namespace fuseline::rms {

// A cluster owns one row, each of its blocks the next `slice` columns, the last blocks fewer or
// none: read once, into ITEMS packs a thread. Writes y and, if requested, rstd.
template <typename T, typename W, typename Shape, bool ADDS, typename Y>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    fwd_cluster_kernel(const __grid_constant__ FwdArgs<T, W, ADDS, Y> a, int slice) {
#if __CUDA_ARCH__ >= 900
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, THREADS = Shape::MAX_THREADS;
  constexpr int STEP = THREADS * VEC;
  __shared__ ClusterSum sums;
  __shared__ double scratch[kWarp];
  const Cluster cluster;
  if (threadIdx.x == 0) sums.barrier.init(1);
  Cluster::arrive_relaxed();
  const int64_t row = cluster.index;
  const int first = cluster.rank * slice + threadIdx.x * VEC;
  const int end = min(static_cast<int>(a.n), static_cast<int>(cluster.rank + 1) * slice);
  const T* const x = a.x + row * a.x_stride;
  Y* const y = a.y + row * a.n;

  const auto scale = a.load_scale();
  Pack<T, VEC> packs[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    packs[i] = Pack<T, VEC>{};
    if (first + i * STEP < end) packs[i] = load<T, VEC>(x + first + i * STEP);
  }
  add_residual<2>(a, row, first, STEP, end, packs);
  const auto divide = divisor(scale);
  S part = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) part += square_sum(packs[i]);
  Cluster::wait();  // no block sends to one that is not ready
  const double square = cluster_sum<THREADS>(cluster, part, sums) / static_cast<double>(a.n);
  const S largest = static_cast<S>(largest_of(square, a.eps));
  if (needs_fallback(largest)) {
    Cluster::synchronize();  // what is read now others have written
    if (cluster.rank == 0) fallback<true>(a, row, largest, true, threadIdx.x, THREADS, scratch);
    return;
  }
  const S rstd = inverse_sqrt<T>(static_cast<S>(square + a.eps));
  if (a.rstd && first == 0) a.rstd[row] = rstd;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = first + i * STEP;
    if (col >= end) continue;
    const Pack<W, VEC> weight = a.weight ? load<W, VEC>(a.weight + col) : ones<W, VEC>();
    store<Y, VEC>(y + col, normalise<Y>(packs[i], rstd, weight, a.weight_offset, divide));
  }
#endif
}

}  // namespace fuseline::rms
