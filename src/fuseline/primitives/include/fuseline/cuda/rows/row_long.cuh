// The kernel of row_cuda.cuh for rows that are longer than the registers of a cluster, and what
// blocks do that share such a row.
#pragma once

#include "fuseline/cuda/rows/row_again.cuh"
#include "fuseline/cuda/rows/row_cluster.cuh"
#include "fuseline/cuda/runs.cuh"

namespace fuseline::rows {

constexpr int kMostPieces = 13;  // of a block that holds them

// Pieces of a row for each block that is needed to hold it, so that more blocks share few rows.
// That takes many rows of the other operators up to a tenth longer.
template <typename Op>
constexpr int kPiecesOfBlock = Op::FEW_KERNELS ? 4
                               : Op::APART     ? 2
                                               : 1;

// A row in `pieces` of `piece` columns, the last ones fewer or none, of which a block has the next
// `each`. The order of sums depends on the pieces, not on how many of them are a block's: lanes,
// warps of a piece, up to 16 pieces; or else pieces of a sixteenth of the row, sixteenths.
struct LongPlan {
  int pieces, each, piece;
  int pitch;  // bytes of shared memory that hold what a block has of an input
};

// What the warps of a block have of its pieces, in a round.
template <int ROUND, int THREADS, typename Op>
__device__ __forceinline__ auto warp_parts() {
  __shared__ typename Op::template Part<ROUND> parts[kMostPieces][THREADS / kWarp];
  return parts;
}

// One of these pieces, in each thread of a warp.
template <int ROUND, int THREADS, typename Op>
__device__ __forceinline__ auto piece_part(int piece) {
  constexpr int WARPS = THREADS / kWarp;
  return over_lanes(warp_parts<ROUND, THREADS, Op>()[piece][threadIdx.x % WARPS], WARPS);
}

// The sums over a row of whose pieces a block has some, `columns(piece)`; `whole` puts together
// what all blocks have, once this one's warps have left their parts.
template <int ROUND, int THREADS, typename Op, typename Columns, typename Whole>
__device__ __forceinline__ void rounds_of_pieces(const Op& op, typename Op::Row& row, int pieces,
                                                 const Columns& columns, int64_t n,
                                                 const Whole& whole) {
  if constexpr (ROUND < Op::ROUNDS) {
#pragma unroll 1
    for (int piece = 0; piece < pieces; ++piece) {
      const auto part = over_lanes(columns_part<ROUND>(op, row, columns(piece)), kWarp);
      if (threadIdx.x % kWarp == 0) {
        warp_parts<ROUND, THREADS, Op>()[piece][threadIdx.x / kWarp] = part;
      }
    }
    __syncthreads();
    op.template end<ROUND>(row, whole(Round<ROUND>{}), n);
    rounds_of_pieces<ROUND + 1, THREADS>(op, row, pieces, columns, n, whole);
  }
}

// A pack at any address in shared memory, of which 16 bytes at a multiple of 16 are read.
template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> load_shifted(const T* from) {
  const int skew = skew_of(from);
  const char* const base = reinterpret_cast<const char*>(from) - skew;
  const Words<4> low = load_words(base);
  if (skew == 0) return as_pack<Pack<T, VEC>>(low);
  return as_pack<Pack<T, VEC>>(shifted(low, load_words(base + 16), skew));
}

// Writes the columns `here` of a row, which are its columns from `first` on, in whole packs where
// the first output has these. Inputs are in shared memory, as Run leaves them.
template <int VEC, int THREADS, typename Op>
__device__ __forceinline__ void write_packs(const ArgsOf<Op>& here, const Op& op,
                                            const typename Op::Row& row, int64_t first,
                                            const OutputsOf<Op>& to) {
  using T = typename Op::T;
  using Y = Written<Op>;
  const auto n = static_cast<int>(here.n);
  const auto write = [&](auto width, int col) {
    constexpr int WIDTH = decltype(width)::value;
    const Span<WIDTH, false> at{0, n - col, WIDTH};  // from `col` on, which may be odd
    Packs<Op, WIDTH> held[1];
    load_prepared(op, row, at, first + col, held, [&](const auto&) {
#pragma unroll
      for (int k = 0; k < Op::INPUTS; ++k) {
        Pack<T, WIDTH> pack;
        if constexpr (WIDTH == 1) pack.v[0] = here.in[k][col];
        if constexpr (WIDTH > 1) pack = load_shifted<T, WIDTH>(here.in[k] + col);
        held[0].v[k] = unpack<typename Op::S>(pack);
      }
    });
    const auto y =
        op.out(row, held[0], op.template some_operands<WIDTH, false>(at, 0, first + col));
#pragma unroll
    for (int k = 0; k < Op::OUTPUTS; ++k) {
      const auto p = pack<Y>(output(y, k));
      if (skew_of(to.of[k]) == skew_of(to.of[0])) {
        store<Y, WIDTH>(to.of[k] + col, p);
      } else {
        store_elements(to.of[k], p, col, col, col + WIDTH);
      }
    }
  };
  constexpr int BYTES = VEC * sizeof(Y);
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(to.of[0]) % BYTES / sizeof(Y));
  for (int col = static_cast<int>(threadIdx.x) * VEC - before; col < n; col += THREADS * VEC) {
    if (col >= 0 && col + VEC <= n) {
      write(std::integral_constant<int, VEC>{}, col);
    } else {
#pragma unroll 1
      for (int one = max(col, 0); one < min(col + VEC, n); ++one) {
        write(std::integral_constant<int, 1>{}, one);
      }
    }
  }
}

// What block `rank` of those that share a row does of it. If HELD, it keeps its columns in shared
// memory and reads them there again for each sum and for the output.
template <bool HELD, int VEC, bool WHOLE, int THREADS, typename Op, typename Whole>
__device__ __forceinline__ void long_row(const ArgsOf<Op>& a, const Op& op, int64_t index, int rank,
                                         const LongPlan& plan, const Whole& whole) {
  using T = typename Op::T;
  extern __shared__ __align__(128) unsigned char smem[];
  const int64_t slice = static_cast<int64_t>(plan.each) * plan.piece, begin = rank * slice;
  ArgsOf<Op> here{};  // the block's columns
  here.rows = 1;
  here.n = max(int64_t{0}, min(a.n - begin, slice));
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
    const T* const from = a.in[k] + index * a.stride[k] + begin;
    here.in[k] = from;
    if constexpr (HELD) {
      const Run<T> run(smem + k * plan.pitch, from);
      run.load(from, static_cast<int>(here.n), threadIdx.x, THREADS);
      here.in[k] = run.at;
    }
  }
  typename Op::Row row = op.begin(a, index);
  if constexpr (HELD) {
    ask_for_parameters(op, row, begin, static_cast<int>(here.n), threadIdx.x, THREADS);
    end_batch();
    wait_for_batch<0>();
    __syncthreads();
  }
  constexpr bool FEW = Op::FEW_KERNELS || Op::INPUTS * VEC * sizeof(typename Op::S) > 32;
  constexpr int AT_ONCE = FEW ? 1 : 2;
  using Columns = WarpColumns<Op, VEC, WHOLE, AT_ONCE, HELD>;
  const auto order = a.n % VEC == 0 ? Order::kPacks : a.n % 2 ? Order::kSingles : Order::kPairs;
  const auto columns_of = [&](int piece) {
    const int64_t first = static_cast<int64_t>(piece) * plan.piece;
    ArgsOf<Op> some = here;
    some.n = max(int64_t{0}, min(here.n - first, static_cast<int64_t>(plan.piece)));
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) some.in[k] += first;
    return Columns(some, 0, plan.piece, THREADS, begin + first, order);
  };
  rounds_of_pieces<0, THREADS>(op, row, plan.each, columns_of, a.n, whole);
  if (rank == 0 && threadIdx.x == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    if constexpr (Op::HAS_FALLBACK) {
      if (op.needs_fallback(row)) {
        if (rank == 0) run_fallback<true>(op, a, row, index, true, threadIdx.x, THREADS);
        return;
      }
    }
    if constexpr (HELD && !WHOLE) {
      write_packs<VEC, THREADS>(here, op, row, begin, a.out.at(index * a.n + begin));
    } else {
      Columns columns(here, 0, slice, THREADS, begin, order);
      columns.write(op, row, a.out.at(index * a.n + columns.first));
    }
  }
}

// The part of a block that has a sixteenth of a row in several pieces.
template <int ROUND, int THREADS, typename Op>
__device__ __forceinline__ auto sixteenth_part(int pieces) {
  using Part = typename Op::template Part<ROUND>;
  __shared__ Part parts[kMostPieces];
  const int lane = threadIdx.x % kWarp;
  for (int piece = threadIdx.x / kWarp; piece < pieces; piece += THREADS / kWarp) {
    const Part part = piece_part<ROUND, THREADS, Op>(piece);
    if (lane == 0) parts[piece] = part;
  }
  __syncthreads();
  return over_lanes(lane % kMaxCluster < pieces ? parts[lane % kMaxCluster] : Part::none(),
                    kMaxCluster);
}

// Those of a cluster that has up to 16 pieces, several a block.
template <int ROUND, int THREADS, typename Op, typename Place>
__device__ __forceinline__ auto part_of_few(const Cluster& cluster, int each, Place& place) {
  const int which = threadIdx.x / cluster.size % kMaxCluster;  // of these pieces is this thread's
  auto part = piece_part<ROUND, THREADS, Op>(0);
  for (int piece = 1; piece < each; ++piece) {
    const auto next = piece_part<ROUND, THREADS, Op>(piece);
    if (which == piece) part = next;
  }
  if (which >= each) part = part.none();
  if (cluster.size == 1) return over_lanes(part, kMaxCluster);
  return cluster_parts(cluster, each, part, place);
}

// A cluster keeps a row in its shared memory, a block one piece or several (sm_90 and later).
template <typename Op, int VEC, bool WHOLE, int THREADS>
__global__ void __launch_bounds__(THREADS, 2)
    row_long_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                    const __grid_constant__ LongPlan plan) {
#if FUSELINE_CLUSTERS
  const Cluster cluster;
  if (threadIdx.x == 0) init_round_parts<Op, 1>();
  Cluster::arrive_relaxed();
  long_row<true, VEC, WHOLE, THREADS>(a, op, cluster.index, cluster.rank, plan, [&](auto round) {
    constexpr int ROUND = decltype(round)::value;
    auto& place = round_parts<ROUND, Op, 1>()[0];
    if constexpr (kPiecesOfBlock<Op> > 1) {
      if (plan.each > 1 && plan.pieces <= kMaxCluster) {
        if (ROUND == 0) Cluster::wait();
        return part_of_few<ROUND, THREADS, Op>(cluster, plan.each, place);
      }
    }
    const auto block = plan.each == 1 ? piece_part<ROUND, THREADS, Op>(0)
                                      : sixteenth_part<ROUND, THREADS, Op>(plan.each);
    if (ROUND == 0) Cluster::wait();  // no block sends to one that is not ready
    return cluster_part(cluster, block, place);
  });
#endif
}

}  // namespace fuseline::rows
