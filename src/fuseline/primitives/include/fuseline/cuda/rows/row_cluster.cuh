// The kernel of row_cuda.cuh for rows that only a cluster of blocks holds.
#pragma once

#include "fuseline/cuda/cluster.cuh"
#include "fuseline/cuda/rows/row_cuda.cuh"

namespace fuseline::rows {

// Shared memory for the partial sums of a round from all blocks of a cluster, TIMES of them.
template <int ROUND, typename Op, int TIMES>
__device__ __forceinline__ auto round_parts() {
  __shared__ ClusterParts<typename Op::template Part<ROUND>> parts[TIMES];
  return parts;
}

template <typename Op, int TIMES, int ROUND = 0>
__device__ __forceinline__ void init_round_parts() {
  if constexpr (ROUND < Op::ROUNDS) {
    for (int i = 0; i < TIMES; ++i) round_parts<ROUND, Op, TIMES>()[i].barrier.init(1);
    init_round_parts<Op, TIMES, ROUND + 1>();
  }
}

// A cluster owns a row, each of its blocks the next `slice` columns, the last blocks fewer or none:
// read once, into ITEMS packs a thread (sm_90 and later).
template <typename Op, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_cluster_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                       int slice) {
#if FUSELINE_CLUSTERS
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, THREADS = Shape::MAX_THREADS;
  const Cluster cluster;
  if (threadIdx.x == 0) init_round_parts<Op, 1>();
  Cluster::arrive_relaxed();
  const int begin = cluster.rank * slice, end = min(static_cast<int>(a.n), begin + slice);
  const auto at = block_span<VEC, Shape::WHOLE>(begin, end, slice, log2_of(THREADS));
  const int64_t index = cluster.index;

  typename Op::Row row = op.begin(a, index);
  if constexpr (!Shape::EARLY) {
    ask_for_parameters(op, row, begin, end - begin, threadIdx.x, THREADS);
  }
  Packs<Op, VEC> held[ITEMS];
  load_prepared(op, row, at, 0, held,
                [&](const auto& seen) { load_packs<Op>(a, index, seen, held); });
  const Writer<Op, Shape> writer(op, at);
  rounds<0>(op, row, held, a.n, at, [&](const auto& part, auto round) {
    constexpr int ROUND = decltype(round)::value;
    const auto block = row_part<true, THREADS, ROUND>(part, THREADS);
    if (ROUND == 0) Cluster::wait();  // no block sends to one that is not ready
    return cluster_part(cluster, block, round_parts<ROUND, Op, 1>()[0]);
  });
  if (at.first == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    if constexpr (Op::HAS_FALLBACK) {
      if (op.needs_fallback(row)) {
        if (cluster.rank == 0) run_fallback<true>(op, a, row, index, true, threadIdx.x, THREADS);
        return;
      }
    }
    writer.write(row, held, a.out.at(index * a.n));
  }
#endif
}

}  // namespace fuseline::rows
