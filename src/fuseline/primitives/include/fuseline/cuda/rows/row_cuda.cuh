// Kernels of operators that turn rows into rows of the same length, by sums over each row.
//
// An operator is a type Op, passed to the kernel by value:
//   T, S             the elements, and the type computed in
//   INPUTS, ROUNDS   tensors read; sums over the row, one after the other
//   OUTPUTS, APART   tensors written, not counting those of finish(); whether they need no sum
//   Y                the elements of these, where that is not T
//   OPERANDS         parameters that are loaded for each column
//   each_parameter   (row, f): calls f(pointer) with what else the columns of a row need
//   HAS_FALLBACK     whether rows for which needs_fallback() is true are computed by fallback()
//   INTENSE          whether computing a row takes about as long as its memory traffic (half types)
//   aligned()        whether `operands` may load packs
//   nothing()        value of the columns past the end of a row
//   Part<ROUND>      what is summed; Part::none(), plus(a, b), over_lanes(part, width): those of
//                    neighbours, in each of them; QUICK: threads add a few faster than shuffles
//   Row              a thread's state of its row; begin(args, index) -> Row
//   sum<ROUND>       (row, packs, there) -> Part of the packs i with there(i), of the elements v
//                    with there(i, v); it may change them
//   end<ROUND>       (row, the whole row's Part, n): what follows from it
//   operands<VEC, EARLY>  (wanted, column) -> further operands of `out` there, such as parameters
//   some_operands<VEC, EARLY>  (at, i, first) -> the same of the elements at(i, v) of pack i, whose
//                    columns count from `first`, wherever the parameters lie
//   out              (row, pack, operands) -> Values of the output, or Outputs
//   finish           (row, index): what one thread per row writes in addition
//   Again, again()   the same for rows that are read again, where changed packs are lost
//   Anywhere, anywhere()  the same for rows that are not WHOLE, where that is another type
//   FEW_KERNELS      whether code size counts: a warp's rows have one kernel, the registers of a
//                    cluster none
//   PREPARES         whether all of this is of other rows than memory has, made by
//   seen             (row, span, first) -> the columns of the span that are loaded, in whole pairs
//                    where it has these; they count from `first` of the row
//   prepare          (row, packs, span, first): makes of what was loaded what the row has
#pragma once

#include "fuseline/cuda/rows/row_outputs.cuh"
#include "fuseline/cuda/rows/row_span.cuh"
#include "fuseline/cuda/skew.cuh"

namespace fuseline::rows {

template <typename T, int INPUTS, typename To>
struct Args {
  const T* in[INPUTS];
  int64_t stride[INPUTS];
  To out;  // contiguous
  int64_t rows, n;
  int64_t gap[INPUTS];  // elements between those of a row; only row_short.cuh knows of any

  __device__ __forceinline__ const T& at(int k, int64_t row, int64_t col) const {
    return in[k][row * stride[k] + col * (1 + gap[k])];
  }
};
template <typename Op>
using ArgsOf = Args<typename Op::T, Op::INPUTS, OutputsOf<Op>>;

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
  // Padding from element `count` on.
  __device__ __forceinline__ void cut(int count) {
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
#pragma unroll
      for (int i = 0; i < VEC; ++i) {
        if (i >= count) v[k].v[i] = Op::nothing();
      }
    }
  }
};

// The inputs of one row, from a thread's first column on; with RETAIN, see retained().
template <typename Op, bool RETAIN = (Op::OUTPUTS > 0)>
struct Inputs {
  const typename Op::T* at[Op::INPUTS];

  __device__ __forceinline__ Inputs(const ArgsOf<Op>& a, int64_t row, int64_t first) {
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      at[k] = a.in[k] + row * a.stride[k] + first;
      if constexpr (RETAIN) at[k] = retained(at[k]);
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

// A thread's packs of each input of a row, wherever that begins.
template <bool RETAIN, typename Op, int VEC, int ITEMS>
__device__ __forceinline__ void load_skewed(const ArgsOf<Op>& a, int64_t row,
                                            const Span<VEC, false>& at,
                                            Packs<Op, VEC> (&held)[ITEMS]) {
  using T = typename Op::T;
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
    const T* from = a.in[k] + row * a.stride[k];
    if constexpr (RETAIN) from = retained(from);
    const T* const end = a.in[k] + (a.rows - 1) * a.stride[k] + a.n;
    Pack<T, VEC> packs[ITEMS];
    load_row(from, at.first, at.step, at.first + at.count, end, packs);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) held[i].v[k] = unpack<typename Op::S>(packs[i]);
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (at.left(i) < VEC) held[i].cut(at.left(i));
  }
}

// A thread's packs of rows in shared memory.
template <typename Op, int VEC, int ITEMS>
__device__ __forceinline__ void load_shared(const typename Op::T* const (&rows)[Op::INPUTS],
                                            const Span<VEC, false>& at,
                                            Packs<Op, VEC> (&held)[ITEMS]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      Pack<typename Op::T, VEC> pack = filled<VEC>(round_to<typename Op::T>(Op::nothing()));
      if (at(i)) load_pack(rows[k], at, i, pack);
      held[i].v[k] = unpack<typename Op::S>(pack);
    }
  }
}

// A thread's packs of a row: of one that starts at 16 bytes and consists of whole packs, or of any.
template <typename Op, bool RETAIN = (Op::OUTPUTS > 0), int VEC, bool WHOLE, int ITEMS>
__device__ __forceinline__ void load_packs(const ArgsOf<Op>& a, int64_t row,
                                           const Span<VEC, WHOLE>& at,
                                           Packs<Op, VEC> (&held)[ITEMS]) {
  if constexpr (WHOLE) {
    const Inputs<Op, RETAIN> in(a, row, at.first);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      held[i] = at(i) ? in.template load<VEC>(i * at.step) : Packs<Op, VEC>::none();
    }
  } else {
    load_skewed<RETAIN>(a, row, at, held);
  }
}

// What a thread has of a row in columns that count from `first`; `load(span)` loads it.
template <typename Op, typename Span, int VEC, int ITEMS, typename Load>
__device__ __forceinline__ void load_prepared(const Op& op, const typename Op::Row& row,
                                              const Span& at, int64_t first,
                                              Packs<Op, VEC> (&held)[ITEMS], const Load& load) {
  if constexpr (Op::PREPARES) {
    load(op.seen(row, at, first));
    op.prepare(row, held, at, first);
  } else {
    load(at);
  }
}

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
    constexpr int FEW = WARPS < 8 ? WARPS : 8;
    if (Part::QUICK && warps <= FEW) {
      Part all = scratch[0];
#pragma unroll
      for (int i = 1; i < FEW; ++i) all = plus(all, i < warps ? scratch[i] : Part::none());
      return all;
    }
    return over_lanes(warp < warps ? scratch[warp] : Part::none(), WARPS);
  }
}

// Whether a row needs the fallback.
template <typename Op>
__device__ __forceinline__ bool wants_fallback(const Op& op, const typename Op::Row& row,
                                               bool active) {
  if constexpr (Op::HAS_FALLBACK) return active && op.needs_fallback(row);
  return false;
}

// Runs the fallback for the rows of a block that want it: all its threads take part if one of them
// has such a row. Behind what all rows do its instructions do not lie in their way, and what they
// hold takes none of its registers.
template <bool MULTI_WARP, typename Op>
__device__ __forceinline__ void run_fallback(const Op& op, const ArgsOf<Op>& a,
                                             const typename Op::Row& row, int64_t index,
                                             bool wanted, int lane, int row_threads) {
  if constexpr (Op::HAS_FALLBACK) {
    __shared__ double scratch[kWarp];
    const bool none = !(MULTI_WARP ? wanted : __any_sync(kFullMask, wanted));
    if (__builtin_expect(none, true)) return;
    op.fallback(a, row, index, lane, row_threads, wanted, [&](double part) {
      if constexpr (MULTI_WARP) __syncthreads();
      return row_sum<MULTI_WARP>(part, row_threads, scratch);
    });
  }
}

// The traits of most operators.
struct DefaultTraits {
  static constexpr int OUTPUTS = 1, OPERANDS = 0;
  static constexpr bool HAS_FALLBACK = false, INTENSE = false, PREPARES = false;
  static constexpr bool FEW_KERNELS = false, APART = false;
  static bool aligned() { return true; }
  template <typename Row, typename F>
  __device__ __forceinline__ void each_parameter(const Row&, const F&) const {}
};
// Base of operators whose `out` needs no operands but the row.
struct NoOperands {};
struct NoEpilogueOperands : DefaultTraits {
  template <int VEC, bool EARLY>
  __device__ NoOperands operands(bool, int64_t) const {
    return {};
  }
  template <int VEC, bool EARLY, typename Span>
  __device__ NoOperands some_operands(const Span&, int, int64_t) const {
    return {};
  }
};

// Asks for the parameters of `count` columns from `first` on, by `threads` of which this is one,
// where they are loaded late: few blocks would wait for memory twice. Many blocks that ask at once
// would queue for the same lines.
template <typename Op>
__device__ __forceinline__ void ask_for_parameters(const Op& op, const typename Op::Row& row,
                                                   int64_t first, int count, int thread,
                                                   int threads) {
#ifdef __CUDA_ARCH__
  constexpr int kFewBlocks = 256, kLineBytes = 128;
  if constexpr (Op::OPERANDS > 0 || Op::PREPARES) {
    if (gridDim.x > kFewBlocks) return;
    op.each_parameter(row, [&](const auto* parameter) {
      constexpr int LINE = kLineBytes / sizeof(*parameter);
      if (parameter == nullptr) return;
#pragma unroll 1
      for (int col = thread * LINE; col < count; col += threads * LINE) {
        asm volatile("prefetch.global.L1 [%0];" ::"l"(parameter + first + col));
      }
    });
  }
#endif
}

constexpr int kLaunchSays = -1;

// How a block works on rows: with ITEMS accesses of VEC elements a thread, on one row (IS_BLOCK) or
// on several of at most a warp's threads each: 2^LOG_WIDTH, or as many as the launch says. EARLY
// loads the operands of `out` before the sums are known, which takes registers. Not WHOLE: rows
// begin anywhere and end within an access.
template <int VEC_, int ITEMS_, bool IS_BLOCK_, int MAX_THREADS_, int MIN_BLOCKS_,
          bool EARLY_ = false, bool WHOLE_ = true, int LOG_WIDTH_ = kLaunchSays>
struct Shape {
  static constexpr int VEC = VEC_, ITEMS = ITEMS_, LOG_WIDTH = LOG_WIDTH_;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  template <int LOG>
  using Wide = Shape<VEC, ITEMS, IS_BLOCK_, MAX_THREADS, MIN_BLOCKS, EARLY_, WHOLE_, LOG>;
  static constexpr bool IS_BLOCK = IS_BLOCK_, EARLY = EARLY_, WHOLE = WHOLE_;
  using Span = rows::Span<VEC, WHOLE>;
};

// The columns of a thread, one of 2^log_width of a row of n.
template <typename Shape>
__device__ __forceinline__ typename Shape::Span row_span(int lane, int n, int log_width) {
  constexpr int VEC = Shape::VEC;
  if constexpr (Shape::IS_BLOCK) {
    return block_span<VEC, Shape::WHOLE>(0, n, n, log_width);
  } else {
    return {lane * VEC, n - lane * VEC, VEC << log_width};
  }
}

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

// Writes the packs of a thread. EARLY: the operands of `out` are loaded by the constructor.
template <typename Op, typename Shape>
struct Writer {
  static constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS;
  static constexpr bool EARLY = Shape::EARLY;
  using Row = typename Op::Row;
  using To = OutputsOf<Op>;
  const Op& op;
  const typename Shape::Span& at;
  decltype(op.template operands<VEC, EARLY>(true, 0)) early[EARLY ? ITEMS : 1];

  __device__ __forceinline__ Writer(const Op& op, const typename Shape::Span& at) : op(op), at(at) {
    if constexpr (EARLY) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) early[i] = load_operands(i);
    }
  }
  __device__ __forceinline__ auto load_operands(int i) const {
    return op.template operands<VEC, EARLY>(at(i), at.column(i));
  }
  __device__ __forceinline__ auto operands(int i) const {
    if constexpr (EARLY) return early[i];
    return load_operands(i);
  }
  // Writes them to the row that begins at `to`. All lanes of a warp call, if it is not WHOLE, which
  // have packs side by side.
  __device__ __forceinline__ void write(const Row& row, const Packs<Op, VEC> (&held)[ITEMS],
                                        const To& to) const {
    if constexpr (Shape::WHOLE) {
      const To from = to.at(at.first);
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {  // without a branch, so that operands are loaded early
        const auto y = op.out(row, held[i], operands(i));
        if (at(i)) store_outputs<VEC>(from, i * at.step, y);
      }
    } else {
      SkewedOutputs<Op, VEC> skewed(to);
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const auto operands = op.template some_operands<VEC, false>(at, i, 0);
        skewed.put(op.out(row, held[i], operands), at.column(i), i == 0, at.first + at.count);
      }
    }
  }
};

// Reads each row once, by 2^log_width threads, into ITEMS packs each. Needs n <= threads * ITEMS *
// VEC.
template <typename Op, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op, int log_width) {
  constexpr bool IS_BLOCK = Shape::IS_BLOCK;
  if constexpr (Shape::LOG_WIDTH != kLaunchSays) log_width = Shape::LOG_WIDTH;
  const int width = 1 << log_width;
  int lane = threadIdx.x;
  int64_t index = blockIdx.x;
  if constexpr (!IS_BLOCK) {
    index = index * (Shape::MAX_THREADS >> log_width) + (lane >> log_width);
    lane &= width - 1;
  }
  const bool active = index < a.rows;
  const auto at = row_span<Shape>(lane, active ? static_cast<int>(a.n) : 0, log_width);
  typename Op::Row row = op.begin(a, active ? index : 0);
  if constexpr (Op::PREPARES) {
    if (active) ask_for_parameters(op, row, 0, static_cast<int>(a.n), lane, width);
  }
  Packs<Op, Shape::VEC> held[Shape::ITEMS];
  load_prepared(op, row, at, 0, held,
                [&](const auto& seen) { load_packs<Op>(a, index, seen, held); });
  const Writer<Op, Shape> writer(op, at);
  rounds<0>(op, row, held, a.n, at, [&](const auto& part, auto round) {
    return row_part<IS_BLOCK, Shape::MAX_THREADS, decltype(round)::value>(part, width);
  });
  if (active && lane == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    const bool again = wants_fallback(op, row, active);
    run_fallback<IS_BLOCK>(op, a, row, index, again, lane, width);
    // Behind it, so that no operand is loaded before the sums are known.
    if (!again) writer.write(row, held, a.out.at(index * a.n));
  }
}

}  // namespace fuseline::rows
