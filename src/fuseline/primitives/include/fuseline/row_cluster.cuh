// The kernel of row_cuda.cuh for rows that only a cluster of blocks holds.
#pragma once

#include "fuseline/cluster.cuh"
#include "fuseline/row_cuda.cuh"

namespace fuseline::rows {

// The same part of several rows.
template <typename Part, int ROWS>
struct Several {
  static constexpr bool QUICK = Part::QUICK;
  Part of[ROWS];
  static __device__ __forceinline__ Several none() {
    Several p;
#pragma unroll
    for (Part& part : p.of) part = Part::none();
    return p;
  }
};
template <typename Part, int ROWS>
__device__ __forceinline__ Several<Part, ROWS> plus(const Several<Part, ROWS>& a,
                                                    const Several<Part, ROWS>& b) {
  Several<Part, ROWS> sum;
#pragma unroll
  for (int r = 0; r < ROWS; ++r) sum.of[r] = plus(a.of[r], b.of[r]);
  return sum;
}
template <typename Part, int ROWS>
__device__ __forceinline__ Several<Part, ROWS> over_lanes(Several<Part, ROWS> p, int width) {
#pragma unroll
  for (Part& part : p.of) part = over_lanes(part, width);
  return p;
}

// Where the blocks of a cluster leave the parts of a round.
template <int ROUND, typename Op, int ROWS>
__device__ __forceinline__ auto place() {
  __shared__ ClusterParts<Several<typename Op::template Part<ROUND>, ROWS>> parts;
  return &parts;
}

template <typename Op, int ROWS, int ROUND>
__device__ __forceinline__ void begin_places() {
  if constexpr (ROUND < Op::ROUNDS) {
    place<ROUND, Op, ROWS>()->arrival.init(1);
    begin_places<Op, ROWS, ROUND + 1>();
  }
}

template <int ROUND, typename Shape, typename Op, typename Held, typename There>
__device__ __forceinline__ void cluster_rounds(const Op& op, typename Op::Row (&row)[Shape::ROWS],
                                               Held (&held)[Shape::ROWS], int64_t n,
                                               const There& there, const Cluster& cluster) {
  if constexpr (ROUND < Op::ROUNDS) {
    Several<typename Op::template Part<ROUND>, Shape::ROWS> part;
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) {
      part.of[r] = op.template sum<ROUND>(row[r], held[r], there);
    }
    const auto block = row_part<true, Shape::MAX_THREADS, ROUND>(part, Shape::MAX_THREADS);
    if (ROUND == 0) Cluster::wait();  // no block sends to one that is not ready
    const auto all = cluster_part(cluster, block, *place<ROUND, Op, Shape::ROWS>());
#pragma unroll
    for (int r = 0; r < Shape::ROWS; ++r) op.template end<ROUND>(row[r], all.of[r], n);
    cluster_rounds<ROUND + 1, Shape>(op, row, held, n, there, cluster);
  }
}

// A cluster owns ROWS rows, each of its blocks the next `slice` columns of them, the last blocks
// fewer or none: read once, into ITEMS packs a thread and row (sm_90 and later).
template <typename Op, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_cluster_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                       int slice) {
#if __CUDA_ARCH__ >= 900
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, THREADS = Shape::MAX_THREADS;
  constexpr int STEP = THREADS * VEC, ROWS = Shape::ROWS;
  const Cluster cluster;
  if constexpr (Op::ROUNDS > 0) {
    if (threadIdx.x == 0) begin_places<Op, ROWS, 0>();
    Cluster::arrive_relaxed();
  }
  const int first = cluster.rank * slice + threadIdx.x * VEC;
  const int cols = min(static_cast<int>(a.n), static_cast<int>(cluster.rank + 1) * slice) - first;
  const int64_t index = static_cast<int64_t>(cluster.index) * ROWS;
  const auto there = [&](int i) { return i * STEP < cols; };

  typename Op::Row row[ROWS];
  Packs<Op, VEC> held[ROWS][ITEMS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    const bool active = index + r < a.rows;
    const int64_t mine = active ? index + r : index;
    row[r] = op.begin(a, mine);
    const Inputs<Op> in(a, mine, first);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      held[r][i] = active && there(i) ? in.template load<VEC>(i * STEP) : Packs<Op, VEC>::none();
    }
  }
  const Writer<Op, VEC, ITEMS, STEP, Shape::EARLY, decltype(there)> writer(op, first, there);
  cluster_rounds<0, Shape>(op, row, held, a.n, there, cluster);
  bool wanted[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; ++r) {
    wanted[r] = index + r < a.rows;
    if (first == 0 && wanted[r]) op.finish(row[r], index + r);
    if constexpr (Op::REPAIRS) {
      if (wanted[r] && op.strange(row[r])) {
        wanted[r] = false;
        if (cluster.rank == 0) {
          repaired<true>(op, a, row[r], index + r, true, threadIdx.x, THREADS);
        }
      }
    }
  }
  if constexpr (Op::OUTPUTS > 0) {
    const auto to = a.out.at(index * a.n + first);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const auto besides = writer.besides(i);  // of all rows
#pragma unroll
      for (int r = 0; r < ROWS; ++r) {
        writer.write(i, wanted[r], besides, row[r], held[r][i], to.at(r * a.n));
      }
    }
  }
#endif
}

}  // namespace fuseline::rows
