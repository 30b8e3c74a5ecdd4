// The kernels of row_cuda.cuh for rows that begin anywhere or end within 16 bytes, and are no
// longer than a block's registers: they come and go by single elements, or by two; many rows of few
// elements by way of shared memory, as one run, 16 bytes at a time.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"
#include "fuseline/cuda/runs.cuh"

namespace fuseline::rows {

// The columns of a thread, one of 2^log_width of a row of n: those that it has in row_kernel; or,
// if SPREAD, elements side by side with those of the other lanes, pairs of them where n is even.
template <typename Shape, bool SPREAD>
__device__ __forceinline__ typename Shape::Span short_span(int lane, int n, int log_width) {
  using Span = typename Shape::Span;
  if constexpr (!SPREAD) {
    return row_span<Shape>(lane, n, log_width);
  } else if constexpr (Shape::IS_BLOCK) {
    constexpr int STEP = kWarp * Shape::VEC;
    const int share = ((n - 1) / (Shape::VEC << log_width) + 1) * STEP;  // of a warp
    const int begin = lane / kWarp * share;
    return Span::spread(begin, min(n, begin + share), lane % kWarp, kWarp, n % 2 == 0);
  } else {
    return Span::spread(0, n, lane, 1 << log_width, n % 2 == 0);
  }
}

// A thread's packs of rows in memory. All are on their way before one is waited for.
template <bool IN_PAIRS, typename Op, int VEC, int ITEMS>
__device__ __forceinline__ void load_short(const typename Op::T* const (&rows)[Op::INPUTS],
                                           const Span<VEC, false>& at,
                                           Packs<Op, VEC> (&held)[ITEMS]) {
  using T = typename Op::T;
  const T nothing = round_to<T>(Op::nothing());
  std::conditional_t<IN_PAIRS, Pack<T, VEC>, Loose<T, VEC>> coming[Op::INPUTS][ITEMS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) put(coming[k][i], v, nothing);
      if (at(i)) load_pack<IN_PAIRS>(rows[k], at, i, coming[k][i]);
    }
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      if constexpr (IN_PAIRS) held[i].v[k] = unpack<typename Op::S>(coming[k][i]);
      if constexpr (!IN_PAIRS) held[i].v[k] = unpack<typename Op::S>(coming[k][i].pack());
    }
  }
}

// The same of rows whose elements lie apart.
template <typename Op, int VEC, int ITEMS>
__device__ __forceinline__ void load_apart(const ArgsOf<Op>& a, int64_t index,
                                           const Span<VEC, false>& at,
                                           Packs<Op, VEC> (&held)[ITEMS]) {
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        held[i].v[k].v[v] = at(i, v) ? to_stat(a.at(k, index, at.column(i, v))) : Op::nothing();
      }
    }
  }
}

// How a thread comes by the operands of ITEMS packs of VEC elements. docs/decisions/0049 has what
// each brought.
template <typename Op, typename Shape>
struct ShortPlan {
  static constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS;
  // Whether the fallback lies behind what all rows do: rows of few elements, of which code is most
  // of the time, and two operands, which would be loaded before the sums are known, do without.
  static constexpr bool LAST = Op::OPERANDS <= 1 && (VEC == 8 || VEC * ITEMS > 8);
  // Few operands come with the row: memory sends them together.
  static constexpr int MOST_EARLY =
      LAST && Shape::MIN_BLOCKS <= 8 && sizeof(typename Op::S) < 8 ? 16 : 8;
  static constexpr bool EARLY = Op::OPERANDS > 0 && VEC * ITEMS * Op::OPERANDS <= MOST_EARLY;
  // Packs that come together otherwise, as far as there are registers: none waits for a store.
  template <typename Operands>
  static constexpr int TOGETHER = [] {
    constexpr int BYTES = VEC * ITEMS < 32 ? 64 : 16, SIZE = static_cast<int>(sizeof(Operands));
    return EARLY ? ITEMS : LAST ? std::min(ITEMS, std::max(1, BYTES / SIZE)) : 1;
  }();
};

// What 2^log_width threads do of a row, of whose columns this one has `at`; `load(index, columns,
// held)` loads them.
template <typename Op, typename Shape, typename Load>
__device__ __forceinline__ void short_row(const ArgsOf<Op>& a, const Op& op, int log_width,
                                          typename Shape::Span at, const Load& load) {
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS;
  constexpr bool IS_BLOCK = Shape::IS_BLOCK;
  const int width = 1 << log_width, lane = threadIdx.x & (width - 1);
  const int64_t index = IS_BLOCK
                            ? blockIdx.x
                            : static_cast<int64_t>(blockIdx.x) * (Shape::MAX_THREADS >> log_width) +
                                  (threadIdx.x >> log_width);
  const bool active = index < a.rows;
  if (!active) at.count = 0;
  using Plan = ShortPlan<Op, Shape>;
  constexpr bool EARLY = Plan::EARLY, LOOSE = EARLY && Plan::LAST;
  using Operands = decltype(op.template some_operands<VEC, LOOSE>(at, 0, 0));
  constexpr int TOGETHER = Plan::template TOGETHER<Operands>;
  Operands operands[TOGETHER];
  const auto load_operands = [&](int first) {
#pragma unroll
    for (int i = 0; i < TOGETHER; ++i) {
      if (first + i < ITEMS) operands[i] = op.template some_operands<VEC, LOOSE>(at, first + i, 0);
    }
  };
  if constexpr (EARLY) load_operands(0);
  typename Op::Row row = op.begin(a, active ? index : 0);
  if (!EARLY && active) ask_for_parameters(op, row, 0, static_cast<int>(a.n), lane, width);
  Packs<Op, VEC> held[ITEMS];
  load_prepared(op, row, at, 0, held, [&](const auto& seen) { load(index, seen, held); });
  rounds<0>(op, row, held, a.n, at, [&](const auto& part, auto round) {
    return row_part<IS_BLOCK, Shape::MAX_THREADS, decltype(round)::value>(part, width);
  });
  if (active && lane == 0) op.finish(row, index);
  if constexpr (Op::OUTPUTS > 0) {
    const bool again = wants_fallback(op, row, active);
    if constexpr (!Plan::LAST) run_fallback<IS_BLOCK>(op, a, row, index, again, lane, width);
    if (again) at.count = 0;
    const auto to = a.out.at(index * a.n);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (!at(i)) break;
      if (!EARLY && i % TOGETHER == 0) load_operands(i);
      const auto y = op.out(row, held[i], operands[i % TOGETHER]);
#pragma unroll
      for (int k = 0; k < Op::OUTPUTS; ++k) {
        store_pack(to.of[k], output(y, k), at, i, at.in_pairs(to.of[k]));
      }
    }
    if constexpr (Plan::LAST) run_fallback<IS_BLOCK>(op, a, row, index, again, lane, width);
  }
}

// Blocks that a multiprocessor holds: of 1024 threads at least, if 64 registers are enough.
template <typename Op, typename Shape>
constexpr int kShortBlocks = [] {
  constexpr int64_t HELD = Shape::VEC * Shape::ITEMS * Op::INPUTS * sizeof(typename Op::S);
  constexpr bool FIT = HELD <= 128 && Op::OPERANDS <= 1;
  return FIT ? std::max(Shape::MIN_BLOCKS, 1024 / Shape::MAX_THREADS) : Shape::MIN_BLOCKS;
}();

// Reads each row once, by 2^log_width threads. Addresses of elements that neighbouring lanes have
// are neighbours, so that an access of a warp is one of 64 bytes or more.
template <typename Op, typename Shape, bool SPREAD>
__global__ void __launch_bounds__(Shape::MAX_THREADS, kShortBlocks<Op, Shape>)
    row_short_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                     int log_width) {
  if constexpr (Shape::LOG_WIDTH != kLaunchSays) log_width = Shape::LOG_WIDTH;
  const int lane = threadIdx.x & ((1 << log_width) - 1);
  const auto all = short_span<Shape, SPREAD>(lane, static_cast<int>(a.n), log_width);
  short_row<Op, Shape>(a, op, log_width, all, [&](int64_t index, const auto& at, auto& held) {
    const typename Op::T* rows[Op::INPUTS];
    bool in_pairs = true;
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      rows[k] = a.in[k] + index * a.stride[k];
      in_pairs = in_pairs && at.in_pairs(rows[k]);
    }
    in_pairs ? load_short<true, Op>(rows, at, held) : load_short<false, Op>(rows, at, held);
  });
}

// The same of rows whose elements lie apart, SPREAD or not.
template <typename Op, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_apart_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                     int log_width, bool spread) {
  const int lane = threadIdx.x & ((1 << log_width) - 1), n = static_cast<int>(a.n);
  const auto all = spread ? short_span<Shape, true>(lane, n, log_width)
                          : short_span<Shape, false>(lane, n, log_width);
  short_row<Op, Shape>(a, op, log_width, all, [&](int64_t index, const auto& at, auto& held) {
    load_apart<Op>(a, index, at, held);
  });
}

// Elements between rows in shared memory: as in memory, where gaps are shorter than rows.
__host__ __device__ __forceinline__ int64_t tiny_step(int64_t n, int64_t stride, int64_t gap) {
  return gap == 0 && stride >= n && stride <= 2 * n ? stride : n;
}

// Reads each row once, by 2^log_width threads. A block has `each` times as many rows as its threads
// work on at once, of each tensor in `pitch` bytes.
template <typename Op, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    row_tiny_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op, int pitch,
                    int each, int log_width) {
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, THREADS = Shape::MAX_THREADS;
  using T = typename Op::T;
  using Y = Written<Op>;
  static_assert(Op::OUTPUTS <= Op::INPUTS && sizeof(Y) <= sizeof(T));
  extern __shared__ __align__(128) unsigned char smem[];
  const int width = 1 << log_width, lane = threadIdx.x & (width - 1), most = THREADS >> log_width;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * most * each;
  const int n = static_cast<int>(a.n), rows = min(int64_t{most} * each, a.rows - first);
  const T* begin[Op::INPUTS];
  int step[Op::INPUTS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) {
    const T* const memory = a.in[k] + first * a.stride[k];
    const Run<T, 1> run(smem + k * pitch + 16, memory);
    step[k] = static_cast<int>(tiny_step(n, a.stride[k], a.gap[k]));
    if (a.gap[k] == 0 && a.stride[k] == step[k]) {
      run.load(memory, (rows - 1) * step[k] + n, threadIdx.x, THREADS);
    } else {
      gather(run.at, memory, rows, n, a.stride[k], 1 + a.gap[k]);
    }
    begin[k] = run.at;
  }
  end_batch();
  wait_for_batch<0>();
  __syncthreads();

  // Outputs take the place of inputs, which begin 16 bytes behind: a row's end before the next row.
  ArgsOf<Op> here = a;
  if constexpr (Op::OUTPUTS > 0) {
#pragma unroll
    for (int k = 0; k < Op::OUTPUTS; ++k) {
      here.out.of[k] = Run<Y, 1>(smem + k * pitch, a.out.of[k] + first * n).at - first * n;
    }
  }
  const auto columns = row_span<Shape>(lane, n, log_width);
  decltype(op.template some_operands<VEC, true>(columns, 0, 0)) operands[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) operands[i] = op.template some_operands<VEC, true>(columns, i, 0);
#pragma unroll 1
  for (int next = 0; next < rows; next += most) {
    const int nth = next + (threadIdx.x >> log_width);
    const int64_t index = first + nth;
    const bool active = nth < rows;
    auto at = columns;
    if (!active) at.count = 0;
    const T* from[Op::INPUTS];
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) from[k] = begin[k] + nth * step[k];
    typename Op::Row row = op.begin(a, active ? index : 0);
    Packs<Op, VEC> held[ITEMS];
    load_prepared(op, row, at, 0, held, [&](const auto& seen) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
#pragma unroll
          for (int k = 0; k < Op::INPUTS; ++k) {
            held[i].v[k].v[v] = seen(i, v) ? to_stat(from[k][seen.column(i, v)]) : Op::nothing();
          }
        }
      }
    });
    rounds<0>(op, row, held, a.n, at, [&](const auto& part, auto round) {
      return row_part<false, THREADS, decltype(round)::value>(part, width);
    });
    if (active && lane == 0) op.finish(row, index);
    if constexpr (Op::OUTPUTS > 0) {
      __syncthreads();  // all have their elements
      const bool again = wants_fallback(op, row, active);
      if (again) at.count = 0;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (!at(i)) break;
        const auto y = op.out(row, held[i], operands[i]);
#pragma unroll
        for (int k = 0; k < Op::OUTPUTS; ++k) {
          Y* const to = here.out.of[k] + index * n;
          const auto p = pack<Y>(output(y, k));
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            if (at(i, v)) to[at.column(i, v)] = p.v[v];
          }
        }
      }
      run_fallback<false>(op, here, row, index, again, lane, width);
    }
  }
  if constexpr (Op::OUTPUTS > 0) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Op::OUTPUTS; ++k) {
      Y* const to = a.out.of[k] + first * n;
      Run<Y, 1>(smem + k * pitch, to).store(to, rows * n, threadIdx.x, THREADS);
    }
  }
}

}  // namespace fuseline::rows
