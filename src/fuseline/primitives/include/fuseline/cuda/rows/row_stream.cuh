// The kernel of row_cuda.cuh for long rows, with the next row loaded while one is computed:
// persistent clusters that take rows in turn.
#pragma once

#include "fuseline/cuda/rows/row_cluster.cuh"

namespace fuseline::rows {

// Loads the slices of a row, one of each input, into a block's shared memory.
template <typename Op>
struct RowLoader {
  using T = typename Op::T;
  const ArgsOf<Op>& a;
  T* smem;
  Mbarrier* barriers;
  int slice, first, count;  // elements of an input's buffer; the block's columns

  __device__ __forceinline__ T* place(int stage, int k) const {
    return smem + (stage * Op::INPUTS + k) * slice;
  }
  // One thread calls this, when all of the block have read what was there.
  __device__ __forceinline__ void load_async(int64_t index, int stage) const {
    if (index >= a.rows) return;
    for (int k = 0; k < Op::INPUTS; ++k) {
      barriers[stage].copy<true>(place(stage, k), a.in[k] + index * a.stride[k] + first,
                                 count * static_cast<unsigned>(sizeof(T)));
    }
  }
};

// Cluster c owns rows c, c + clusters, ..., each of its blocks the next `slice` columns of them,
// the last blocks fewer or none. A row is read from shared memory; when the block has it in
// registers, the row STAGES later is requested. EARLY keeps the operands of `out` in registers for
// all rows (sm_90 and later).
template <typename Op, typename Shape, int STAGES>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_stream_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                      int slice) {
#if __CUDA_ARCH__ >= 900
  static_assert(!Op::PREPARES);
  using T = typename Op::T;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, THREADS = Shape::MAX_THREADS;
  extern __shared__ __align__(128) unsigned char smem[];  // bulk copies are slower to less
  __shared__ Mbarrier barriers[STAGES];
  const Cluster cluster;
  const bool loads = threadIdx.x == kWarp;  // not the thread that waits for the cluster's sums
  if (loads) {
    for (Mbarrier& barrier : barriers) barrier.init(Op::INPUTS);
    init_round_parts<Op, 2>();
  }
  Cluster::synchronize();  // no block sends to one that is not ready
  const int begin = cluster.rank * slice;
  const int count = max(0, min(static_cast<int>(a.n) - begin, slice));
  const auto at = block_span<VEC, true>(begin, begin + count, slice, log2_of(THREADS));
  const int64_t clusters = gridDim.x / cluster.size;
  const RowLoader<Op> loader{a, reinterpret_cast<T*>(smem), barriers, slice, begin, count};
  if (loads) {
    for (int s = 0; s < STAGES; ++s) loader.load_async(cluster.index + s * clusters, s);
  }
  const Writer<Op, Shape> writer(op, at);
  unsigned turn = 0;
  for (int64_t index = cluster.index; index < a.rows; index += clusters, ++turn) {
    const int stage = turn % STAGES;
    barriers[stage].wait(turn / STAGES % 2);
    Packs<Op, VEC> held[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      held[i] = Packs<Op, VEC>::none();
      if (!at(i)) continue;
#pragma unroll
      for (int k = 0; k < Op::INPUTS; ++k) {
        held[i].v[k] =
            unpack<typename Op::S>(load<T, VEC>(loader.place(stage, k) + at.column(i) - begin));
      }
    }
    typename Op::Row row = op.begin(a, index);
    rounds<0>(op, row, held, a.n, at, [&](const auto& part, auto round) {
      constexpr int ROUND = decltype(round)::value;
      const auto block = row_part<true, THREADS, ROUND>(part, THREADS);
      if (ROUND == 0 && loads) loader.load_async(index + STAGES * clusters, stage);
      return cluster_part(cluster, block, round_parts<ROUND, Op, 2>()[turn % 2], turn / 2 % 2);
    });
    if (at.first == 0) op.finish(row, index);
    if constexpr (Op::ROUNDS == 1) __syncthreads();  // before the next row's parts take their place
    if constexpr (Op::HAS_FALLBACK) {
      if (op.needs_fallback(row)) {
        if (cluster.rank == 0) run_fallback<true>(op, a, row, index, true, threadIdx.x, THREADS);
        continue;
      }
    }
    writer.write(row, held, a.out.at(index * a.n));
  }
#endif
}

}  // namespace fuseline::rows
