// Kernels of operators that turn rows into rows of the same length, by sums over each row.
//
// An operator is a type Op, passed to the kernel by value:
//   T, S             the elements, and the type computed in
//   INPUTS, ROUNDS   tensors read; sums over the row, one after the other, or none
//   OUTPUTS          tensors written, not counting those of finish()
//   HAS_FALLBACK     whether rows for which needs_fallback() is true are computed by fallback()
//   INTENSE          whether computing a row takes about as long as its memory traffic (half types)
//   aligned()        whether `operands` may load packs
//   padding()        value of the columns past the end of a row
//   Part<ROUND>      what is summed; Part::none(), plus(a, b), over_lanes(part, width): the parts
//                    of `width` neighbouring lanes, together, in each of them; and Part::QUICK:
//                    a few are combined faster by each thread than by shuffles
//   Row              a thread's state of its row; begin(args, index) -> Row
//   sum<ROUND>       (row, packs, there) -> Part of the packs i with there(i), which it may change
//   end<ROUND>       (row, the whole row's Part, n): what follows from it
//   operands<VEC, EARLY>  (wanted, column) -> further operands of `out` there, such as parameters
//   out              (row, pack, operands) -> Values of the output, or Outputs
//   finish           (row, index): what one thread per row writes in addition
//   Again, again()   the same for rows that are read again, where changed packs are lost
#pragma once

#include "fuseline/packs.cuh"

namespace fuseline::rows {

// Where COUNT output tensors are written.
template <typename T, int COUNT>
struct OutputPointers {
  T* of[COUNT];
  __device__ __forceinline__ OutputPointers at(int64_t element) const {
    OutputPointers moved;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) moved.of[k] = of[k] + element;
    return moved;
  }
};
template <typename T>
struct OutputPointers<T, 0> {};

template <typename T, int INPUTS, int OUTPUTS>
struct Args {
  const T* in[INPUTS];
  int64_t stride[INPUTS];
  OutputPointers<T, OUTPUTS> out;  // contiguous
  int64_t rows, n;
};
template <typename Op>
using ArgsOf = Args<typename Op::T, Op::INPUTS, Op::OUTPUTS>;

// Values of several outputs, and those of one of them.
template <typename S, int VEC, int COUNT>
struct Outputs {
  Values<S, VEC> of[COUNT];
};
template <typename S, int VEC, int COUNT>
__device__ __forceinline__ const Values<S, VEC>& output(const Outputs<S, VEC, COUNT>& y, int k) {
  return y.of[k];
}
template <typename S, int VEC>
__device__ __forceinline__ const Values<S, VEC>& output(const Values<S, VEC>& y, int) {
  return y;
}

// Writes what `out` gave.
template <int VEC, typename T, int COUNT, typename Values>
__device__ __forceinline__ void store_outputs(const OutputPointers<T, COUNT>& to, int64_t at,
                                              const Values& y) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) store<T, VEC>(to.of[k] + at, pack<T>(output(y, k)));
}

// A pack of each input.
template <typename Op, int VEC>
struct Packs {
  Values<typename Op::S, VEC> v[Op::INPUTS];

  static __device__ __forceinline__ Packs none() {
    Packs p;
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
#pragma unroll
      for (int i = 0; i < VEC; ++i) p.v[k].v[i] = Op::nothing();
    }
    return p;
  }
};

// The inputs of one row, from a thread's first column on.
template <typename Op>
struct Inputs {
  const typename Op::T* at[Op::INPUTS];

  __device__ __forceinline__ Inputs(const ArgsOf<Op>& a, int64_t row, int64_t first) {
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      at[k] = a.in[k] + row * a.stride[k] + first;
      if constexpr (Op::OUTPUTS > 0) at[k] = retained(at[k]);
    }
  }
  template <int VEC>
  __device__ __forceinline__ Packs<Op, VEC> load(int64_t column) const {
    Packs<Op, VEC> p;
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      p.v[k] = unpack<typename Op::S>(fuseline::load<typename Op::T, VEC>(at[k] + column));
    }
    return p;
  }
};

// The parts of all threads of a row, together, in each of them, in an order that depends on their
// number alone. A row of several warps has the block to itself.
template <bool MULTI_WARP, int MAX_THREADS, int ROUND, typename Part>
__device__ __forceinline__ Part row_part(Part p, int row_threads) {
  if constexpr (!MULTI_WARP) {
    return over_lanes(p, row_threads);
  } else {
    __shared__ Part scratch[kWarp];  // of this round
    p = over_lanes(p, kWarp);
    constexpr int WARPS = MAX_THREADS / kWarp;  // a power of two
    const int warp = threadIdx.x % WARPS;
    if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = p;
    __syncthreads();
    const int warps = row_threads / kWarp;
    if constexpr (Part::QUICK && WARPS <= 8) {
      Part all = scratch[0];
#pragma unroll
      for (int i = 1; i < WARPS; ++i) all = plus(all, i < warps ? scratch[i] : Part::none());
      return all;
    }
    return over_lanes(warp < warps ? scratch[warp] : Part::none(), WARPS);
  }
}

// Runs the fallback for the rows of a block that need it: all its threads take part if one of them
// has such a row. Returns whether this thread's row is done.
template <bool MULTI_WARP, typename Op>
__device__ __forceinline__ bool ran_fallback(const Op& op, const ArgsOf<Op>& a,
                                             const typename Op::Row& row, int64_t index,
                                             bool active, int lane, int row_threads) {
  if constexpr (Op::HAS_FALLBACK) {
    __shared__ double scratch[kWarp];
    const bool again = active && op.needs_fallback(row);
    if (!(MULTI_WARP ? again : __any_sync(kFullMask, again))) return false;
    op.fallback(a, index, lane, row_threads, again, [&](double part) {
      if constexpr (MULTI_WARP) __syncthreads();
      return row_sum<MULTI_WARP>(part, row_threads, scratch);
    });
    return again;
  }
  return false;
}

// The traits of most operators.
struct DefaultTraits {
  static constexpr int OUTPUTS = 1;
  static constexpr bool HAS_FALLBACK = false, INTENSE = false;
  static bool aligned() { return true; }
};
// Base of operators whose `out` needs no operands but the row.
struct NoOperands {};
struct NoEpilogueOperands : DefaultTraits {
  template <int VEC, bool EARLY>
  __device__ NoOperands operands(bool, int64_t) const {
    return {};
  }
};

// How a block works on rows: ROW_THREADS threads a row (0: the block is the row's), each with ITEMS
// accesses of VEC elements. EARLY loads the operands of `out` before the sums are known,
// which takes registers.
template <int VEC_, int ITEMS_, int ROW_THREADS_, int MAX_THREADS_, int MIN_BLOCKS_,
          bool EARLY_ = false>
struct Shape {
  static constexpr int VEC = VEC_, ITEMS = ITEMS_, ROW_THREADS = ROW_THREADS_;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool ROW_IS_BLOCK = ROW_THREADS == 0, EARLY = EARLY_;
};

template <int ROUND>
using Round = std::integral_constant<int, ROUND>;

// The sums over a row whose packs a thread holds; `whole` puts the parts of all threads together.
template <int ROUND, typename Op, int VEC, int ITEMS, typename There, typename Whole>
__device__ __forceinline__ void rounds(const Op& op, typename Op::Row& row,
                                       Packs<Op, VEC> (&held)[ITEMS], int64_t n, const There& there,
                                       const Whole& whole) {
  if constexpr (ROUND < Op::ROUNDS) {
    const auto part = op.template sum<ROUND>(row, held, there);
    op.template end<ROUND>(row, whole(part, Round<ROUND>{}), n);
    rounds<ROUND + 1>(op, row, held, n, there, whole);
  }
}

// Writes the packs of a thread that are there, STEP columns apart from `first` on. EARLY: the
// operands of `out` are loaded by the constructor.
template <typename Op, int VEC, int ITEMS, int STEP, bool EARLY, typename There>
struct Writer {
  const Op& op;
  const int first;
  const There& there;
  decltype(op.template operands<VEC, EARLY>(true, 0)) early[EARLY ? ITEMS : 1];

  __device__ __forceinline__ Writer(const Op& op, int first, const There& there)
      : op(op), first(first), there(there) {
    if constexpr (EARLY) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) early[i] = load_operands(i);
    }
  }
  __device__ __forceinline__ auto load_operands(int i) const {
    return op.template operands<VEC, EARLY>(there(i), first + i * STEP);
  }
  __device__ __forceinline__ auto operands(int i) const {
    if constexpr (EARLY) return early[i];
    return load_operands(i);
  }
  // Writes a pack: without a branch, so that its operands are loaded early.
  template <typename Operands>
  __device__ __forceinline__ void write(
      int i, const Operands& operands, const typename Op::Row& row, const Packs<Op, VEC>& pack,
      const OutputPointers<typename Op::T, Op::OUTPUTS>& to) const {
    const auto y = op.out(row, pack, operands);
    if (there(i)) store_outputs<VEC>(to, i * STEP, y);
  }
};

// Reads each row once, into ITEMS packs a thread. Needs n <= row threads * ITEMS * VEC.
template <typename Op, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op) {
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS;
  constexpr int ROW_THREADS = Shape::ROW_IS_BLOCK ? Shape::MAX_THREADS : Shape::ROW_THREADS;
  int lane = threadIdx.x;
  int64_t index = blockIdx.x;
  if constexpr (!Shape::ROW_IS_BLOCK) {
    index = index * (Shape::MAX_THREADS / Shape::ROW_THREADS) + lane / Shape::ROW_THREADS;
    lane %= Shape::ROW_THREADS;
  }
  constexpr int STEP = ROW_THREADS * VEC;
  const bool active = index < a.rows;
  const int cols = (active ? static_cast<int>(a.n) : 0) - lane * VEC;  // of this thread
  const Inputs<Op> in(a, index, lane * VEC);

  typename Op::Row row = op.begin(a, active ? index : 0);
  const auto there = [&](int i) { return i * STEP < cols; };
  Packs<Op, VEC> held[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    held[i] = there(i) ? in.template load<VEC>(i * STEP) : Packs<Op, VEC>::none();
  }
  const Writer<Op, VEC, ITEMS, STEP, Shape::EARLY, decltype(there)> writer(op, lane * VEC, there);
  rounds<0>(op, row, held, a.n, there, [&](const auto& part, auto round) {
    constexpr int ROUND = decltype(round)::value;
    return row_part<Shape::ROW_IS_BLOCK, Shape::MAX_THREADS, ROUND>(part, ROW_THREADS);
  });
  if (active && lane == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    if (ran_fallback<Shape::ROW_IS_BLOCK>(op, a, row, index, active, lane, ROW_THREADS)) return;
    const auto to = a.out.at(index * a.n + lane * VEC);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) writer.write(i, writer.operands(i), row, held[i], to);
  }
}

// The same of a row that is read again for each sum and for the output.
template <int ROUND, int VEC, int THREADS, typename Op>
__device__ __forceinline__ void rounds_again(const Op& op, typename Op::Row& row,
                                             const Inputs<Op>& in, int64_t cols, int64_t step,
                                             int64_t n) {
  if constexpr (ROUND < Op::ROUNDS) {
    auto part = Op::template Part<ROUND>::none();
    for (int64_t col = 0; col < cols; col += step) {
      Packs<Op, VEC> held[1] = {in.template load<VEC>(col)};
      part = plus(part, op.template sum<ROUND>(row, held, [](int) { return true; }));
    }
    op.template end<ROUND>(row, row_part<true, THREADS, ROUND>(part, THREADS), n);
    rounds_again<ROUND + 1, VEC, THREADS>(op, row, in, cols, step, n);
  }
}

// Blocks of so many threads that a multiprocessor is full of, as far as they have registers.
template <typename Op, int THREADS>
constexpr int kAgainBlocks =
    kResidentThreads / THREADS * 4 / static_cast<int>(Op::INPUTS * sizeof(typename Op::S)) -
    (Op::ROUNDS > 1 && Op::INPUTS * sizeof(typename Op::S) < 16);

// A block owns a row of any length. With few registers a thread, a multiprocessor is full of
// threads, and L1 or L2 keeps what is read again.
template <typename Op, int VEC, int THREADS>
__global__ void __launch_bounds__(THREADS, kAgainBlocks<Op, THREADS>)
    row_again_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op) {
  const int64_t index = blockIdx.x, first = static_cast<int64_t>(threadIdx.x) * VEC;
  const int64_t cols = a.n - first, step = static_cast<int64_t>(THREADS) * VEC;
  const Inputs<Op> in(a, index, first);
  typename Op::Row row = op.begin(a, index);
  rounds_again<0, VEC, THREADS>(op, row, in, cols, step, a.n);
  if (threadIdx.x == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    if (ran_fallback<true>(op, a, row, index, true, threadIdx.x, THREADS)) return;
    const auto to = a.out.at(index * a.n + first);
    for (int64_t col = 0; col < cols; col += step) {
      const Packs<Op, VEC> last = in.template load<VEC>(col);
      const auto operands = op.template operands<VEC, false>(true, first + col);
      store_outputs<VEC>(to, col, op.out(row, last, operands));
    }
  }
}

}  // namespace fuseline::rows
