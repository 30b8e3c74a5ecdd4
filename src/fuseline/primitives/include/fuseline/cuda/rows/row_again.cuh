// The kernel of row_cuda.cuh for rows of any length, which are read again for each sum.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"

namespace fuseline::rows {

// How the elements of a row in shared memory are shared by the lanes of a warp: in packs as memory
// has them, where the order of sums is that of row_kernel; or side by side, singly or in pairs.
enum class Order { kPacks, kSingles, kPairs };

// The columns of a warp in a row of any length, or in what a block has of it from column `from` on,
// of which its lanes take AT_ONCE packs each at a time, as many as any other warp of the block does
// of `slice`. Columns of a span count from the warp's first: `begin` of the block's, `first` of the
// row.
template <typename Op, int VEC_, bool WHOLE, int AT_ONCE_, bool SHARED = false>
struct WarpColumns {
  static constexpr int VEC = VEC_, AT_ONCE = AT_ONCE_, STEP = kWarp * VEC;
  using Held = Packs<Op, VEC>[AT_ONCE];
  const int64_t index;
  const Order order;
  int times, count;
  int64_t begin, first;
  ArgsOf<Op> a;  // from `begin` on

  __device__ __forceinline__ WarpColumns(const ArgsOf<Op>& row, int64_t index, int64_t slice,
                                         int threads, int64_t from = 0, Order order = Order::kPacks)
      : index(index), order(order), a(row) {
    const auto each = static_cast<int>((slice + threads * VEC - 1) / (threads * VEC));
    times = (each + AT_ONCE - 1) / AT_ONCE;
    begin = static_cast<int64_t>(threadIdx.x / kWarp) * each * STEP;
    first = from + begin;
    count = static_cast<int>(max(int64_t{0}, min(a.n - begin, int64_t{each} * STEP)));
    a.n -= begin;
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) a.in[k] += begin;
  }
  __device__ __forceinline__ Span<VEC, WHOLE> span(int time) const {
    const int first = threadIdx.x % kWarp * VEC + time * (AT_ONCE * STEP);
    return {first, count - first, STEP};
  }
  __device__ __forceinline__ Span<VEC, WHOLE> spread(int time) const {
    return Span<VEC, WHOLE>::spread(time * (AT_ONCE * STEP), count, threadIdx.x % kWarp, kWarp,
                                    order == Order::kPairs);
  }
  __device__ __forceinline__ void load(const Op& op, const typename Op::Row& row,
                                       const Span<VEC, WHOLE>& at, Held& held) const {
    load_prepared(op, row, at, first, held, [&](const auto& seen) {
      load_packs<Op, Op::OUTPUTS && !SHARED>(a, index, seen, held);
    });
  }
  __device__ __forceinline__ void load_spread(const Op& op, const typename Op::Row& row,
                                              const Span<VEC, WHOLE>& at, Held& held) const {
    load_prepared(op, row, at, first, held,
                  [&](const auto& seen) { load_shared<Op>(a.in, seen, held); });
  }
  // What is to be summed.
  __device__ __forceinline__ Span<VEC, WHOLE> load_terms(const Op& op, const typename Op::Row& row,
                                                         int time, Held& held) const {
    if constexpr (SHARED && !WHOLE) {
      if (order != Order::kPacks) {
        const auto at = spread(time);
        load_spread(op, row, at, held);
        return at;
      }
    }
    const auto at = span(time);
    load(op, row, at, held);
    return at;
  }
  // Writes the outputs to where `to` has the warp's first column.
  __device__ __forceinline__ void write(const Op& op, const typename Op::Row& row,
                                        const OutputsOf<Op>& to) {
    SkewedOutputs<Op, VEC, WHOLE ? 0 : Op::OUTPUTS> skewed(to);
    for (int time = 0; time < times; ++time) {
      const auto at = span(time);
      Held held;
      load(op, row, at, held);
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        if constexpr (WHOLE) {
          const auto operands = op.template operands<VEC, false>(at(i), first + at.column(i));
          const auto y = op.out(row, held[i], operands);
          if (at(i)) store_outputs<VEC>(to, at.column(i), y);
        } else {
          const auto operands = op.template some_operands<VEC, false>(at, i, first);
          const bool begins = time == 0 && i == 0;
          skewed.put(op.out(row, held[i], operands), at.column(i), begins, count);
        }
      }
    }
  }
};

// What a thread has of a round, over columns that it takes a few packs at a time.
template <int ROUND, typename Op, typename Columns>
__device__ __forceinline__ auto columns_part(const Op& op, typename Op::Row& row,
                                             const Columns& columns) {
  auto part = Op::template Part<ROUND>::none();
  for (int time = 0; time < columns.times; ++time) {
    typename Columns::Held held;
    const auto at = columns.load_terms(op, row, time, held);
    part = plus(part, op.template sum<ROUND>(row, held, at));
  }
  return part;
}

// The sums over a row that is read again for each; `whole` as of rounds().
template <int ROUND, typename Op, typename Columns, typename Whole>
__device__ __forceinline__ void rounds_again(const Op& op, typename Op::Row& row,
                                             const Columns& columns, int64_t n,
                                             const Whole& whole) {
  if constexpr (ROUND < Op::ROUNDS) {
    const auto part = columns_part<ROUND>(op, row, columns);
    op.template end<ROUND>(row, whole(part, Round<ROUND>{}), n);
    rounds_again<ROUND + 1>(op, row, columns, n, whole);
  }
}

// Blocks of so many threads that a multiprocessor is full of, as far as they have registers.
template <typename Op, int THREADS>
constexpr int kAgainBlocks =
    (kResidentThreads / THREADS * 4 / static_cast<int>(Op::INPUTS * sizeof(typename Op::S)) -
     (Op::ROUNDS > 1 && Op::INPUTS * sizeof(typename Op::S) < 16)) /
    (Op::INPUTS * sizeof(typename Op::S) > 8 ? 1 : 2);

// A block owns a row of any length. With few registers a thread, a multiprocessor is full of
// threads, and L1 or L2 keeps what is read again.
template <typename Op, int VEC, int THREADS>
__global__ void __launch_bounds__(THREADS, kAgainBlocks<Op, THREADS>)
    row_again_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op) {
  const int64_t index = blockIdx.x;
  WarpColumns<Op, VEC, false, 1> columns(a, index, a.n, THREADS);
  typename Op::Row row = op.begin(a, index);
  rounds_again<0>(op, row, columns, a.n, [&](const auto& part, auto round) {
    return row_part<true, THREADS, decltype(round)::value>(part, THREADS);
  });
  if (threadIdx.x == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    const bool again = wants_fallback(op, row, true);
    if (!again) columns.write(op, row, a.out.at(index * a.n + columns.begin));
    run_fallback<true>(op, a, row, index, again, threadIdx.x, THREADS);
  }
}

}  // namespace fuseline::rows
