// The kernel of row_cuda.cuh for rows that are longer than the registers of a cluster.
#pragma once

#include "fuseline/row_again.cuh"
#include "fuseline/row_cluster.cuh"
#include "fuseline/runs.cuh"

namespace fuseline::rows {

// A cluster keeps a row in its shared memory, `slice` columns a block, those of each input in
// `pitch` bytes, and reads it there again for each sum and for the output (sm_90 and later).
template <typename Op, int VEC, bool WHOLE, int THREADS>
__global__ void __launch_bounds__(THREADS, 2)
    row_long_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op, int slice,
                    int pitch) {
#if FUSELINE_CLUSTERS
  using T = typename Op::T;
  extern __shared__ __align__(128) unsigned char smem[];
  const Cluster cluster;
  if constexpr (Op::ROUNDS > 0) {
    if (threadIdx.x == 0) init_round_parts<Op, 1>();
    Cluster::arrive_relaxed();
  }
  const int64_t index = cluster.index, begin = static_cast<int64_t>(cluster.rank) * slice;
  // Whether outputs may take the place of inputs, as far behind a multiple of 16 bytes.
  bool in_place = !WHOLE && a.n % VEC != 0;
  T* rows[Op::INPUTS];
  ArgsOf<Op> here{};  // the block's columns
  here.rows = 1;
  here.n = max(int64_t{0}, min(a.n - begin, static_cast<int64_t>(slice)));
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
    const T* const from = a.in[k] + index * a.stride[k] + begin;
    const Run<T> run(smem + k * pitch, from);
    run.load(from, static_cast<int>(here.n), threadIdx.x, THREADS);
    here.in[k] = rows[k] = run.at;
    if constexpr (Op::OUTPUTS > 0) {
      if (k < Op::OUTPUTS) {
        in_place &= Run<T>(smem, a.out.of[k] + index * a.n + begin).skew == run.skew;
      }
    }
  }
  end_batch();
  wait_for_batch<0>();
  __syncthreads();
  constexpr int AT_ONCE = Op::INPUTS * VEC * sizeof(typename Op::S) > 32 ? 1 : 2;
  const auto order = a.n % VEC == 0 ? Order::kPacks : a.n % 2 ? Order::kSingles : Order::kPairs;
  WarpColumns<Op, VEC, WHOLE, AT_ONCE, true> columns(here, 0, slice, THREADS, order);
  typename Op::Row row = op.begin(a, index);
  rounds_again<0>(op, row, columns, a.n, [&](const auto& part, auto round) {
    constexpr int ROUND = decltype(round)::value;
    const auto block = row_part<true, THREADS, ROUND>(part, THREADS);
    if (ROUND == 0) Cluster::wait();  // no block sends to one that is not ready
    return cluster_part(cluster, block, round_parts<ROUND, Op, 1>()[0]);
  });
  if (cluster.rank == 0 && threadIdx.x == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    if constexpr (Op::HAS_FALLBACK) {
      if (op.needs_fallback(row)) {
        if (cluster.rank == 0) ran_fallback<true>(op, a, row, index, true, threadIdx.x, THREADS);
        return;
      }
    }
    const int64_t first = begin + columns.begin;
    if (!in_place) return columns.write(op, row, first, a.out.at(index * a.n + first));
    if constexpr (!WHOLE) {
      columns.write_in_place(op, row, first, rows);
      __syncthreads();
      const auto to = a.out.at(index * a.n + begin);
#pragma unroll
      for (int k = 0; k < Op::OUTPUTS; ++k) {
        const Run<T> run(smem + k * pitch, to.of[k]);
        run.store(to.of[k], static_cast<int>(here.n), threadIdx.x, THREADS);
      }
    }
  }
#endif
}

}  // namespace fuseline::rows
