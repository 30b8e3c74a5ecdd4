// The kernel of long columns, in slices. A launch for each sum leaves the parts of all slices,
// which the next ones read, and the last launch writes: blocks share a column and wait for nobody.
// Of operators without sums it is the only one.
#pragma once

#include "fuseline/cuda/columns/column_cuda.cuh"

namespace fuseline::rows {

// Columns in `pieces` slices of `piece` elements, the last one fewer.
struct SlicePlan {
  int pieces;
  int64_t piece;
  int round;             // of sums; the one after the last writes
  unsigned char* parts;  // of each round, slice and column
};

// Bytes of the parts that the rounds before ROUND leave of a slice of a column.
template <typename Op, int ROUND>
constexpr int parts_before() {
  if constexpr (ROUND == 0) {
    return 0;
  } else {
    using Part = typename Op::template Part<ROUND - 1>;
    static_assert(alignof(Part) <= 8 || ROUND == 1);
    return static_cast<int>(sizeof(Part)) + parts_before<Op, ROUND - 1>();
  }
}

template <typename Op, int ROUND>
constexpr int64_t kPartsBefore = parts_before<Op, ROUND>();

// A block's slice of its columns, `count` elements from this thread's `first` on.
template <typename Op, int VEC, int ITEMS>
struct ColumnSlice {
  using Thread = ColumnThread<Op, VEC>;
  using Held = Packs<Op, 1>[VEC][ITEMS];
  const ColumnArgsOf<Op>& a;
  const Thread& at;
  const SlicePlan& plan;
  int slice;
  int64_t first, count;

  // Every other launch begins where the one before ended, whose elements L2 may still have.
  __device__ __forceinline__ ColumnSlice(const ColumnArgsOf<Op>& a, const Thread& at,
                                         const SlicePlan& plan)
      : a(a), at(at), plan(plan) {
    slice = plan.round % 2 ? gridDim.y - 1 - blockIdx.y : blockIdx.y;
    first = slice * plan.piece;
    count = at.count(min(plan.piece, a.n - first));
  }

  // Calls f(held, there, element, count) of ITEMS elements of each column at a time.
  template <typename F>
  __device__ __forceinline__ void each(const F& f) const {
    const int64_t step = static_cast<int64_t>(at.block.depth) * ITEMS;
    for (int64_t passed = 0; passed < count; passed += step) {
      const auto some = static_cast<int>(min(count - passed, step));
      const auto there = [&](int i, int = 0) { return i * at.block.depth < some; };
      Held held;
      at.template load<ITEMS>(a, first + passed, held, there);
      f(held, there, first + passed, some);
    }
  }

  // Where slice `which` of this thread's columns has its parts.
  template <int ROUND>
  __device__ __forceinline__ auto* place(int which) const {
    using Part = typename Op::template Part<ROUND>;
    const int64_t before = kPartsBefore<Op, ROUND> * plan.pieces * a.rows;
    return reinterpret_cast<Part*>(plan.parts + before) + which * a.rows + at.column;
  }

  // What this thread has of a round: of its elements, or, of a round that is over, of slices.
  template <int ROUND, typename Part>
  __device__ __forceinline__ void parts_of(const Op& op, typename Op::Row (&rows)[VEC],
                                           Part (&parts)[VEC]) const {
#pragma unroll
    for (int v = 0; v < VEC; ++v) parts[v] = Part::none();
    if (plan.round == ROUND) {
      each([&](Held& held, const auto& there, int64_t element, int some) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          parts[v] = plus(parts[v], op.template sum<ROUND>(rows[v], held[v], there));
        }
        if constexpr (Op::APART) at.template write<ITEMS>(op, a, element, rows, held, some);
      });
    } else if (at.active) {
      for (int which = at.down; which < plan.pieces; which += at.block.depth) {
        const Part* const left = place<ROUND>(which);
#pragma unroll
        for (int v = 0; v < VEC; ++v) parts[v] = plus(parts[v], left[v]);
      }
    }
  }

  // The sums before this launch's. Leaves those of its own and returns true, unless it writes.
  template <int ROUND>
  __device__ __forceinline__ bool left_parts(const Op& op, typename Op::Row (&rows)[VEC]) const {
    if constexpr (ROUND < Op::ROUNDS) {
      using Part = typename Op::template Part<ROUND>;
      Part parts[VEC];
      parts_of<ROUND>(op, rows, parts);
      whole_columns<ROUND>(parts, at);
      if (plan.round == ROUND) {
        if (at.active && at.down == 0) {
#pragma unroll
          for (int v = 0; v < VEC; ++v) place<ROUND>(slice)[v] = parts[v];
        }
        return true;
      }
#pragma unroll
      for (int v = 0; v < VEC; ++v) op.template end<ROUND>(rows[v], parts[v], a.n);
      return left_parts<ROUND + 1>(op, rows);
    }
    return false;
  }
};

template <typename Op, int VEC, int ITEMS, int THREADS>
__global__ void __launch_bounds__(THREADS, (sizeof(typename Op::T) == 2 ? 768 : 640) / THREADS)
    column_slice_kernel(const __grid_constant__ ColumnArgsOf<Op> a, const __grid_constant__ Op op,
                        ColumnBlock block, const __grid_constant__ SlicePlan plan) {
  const ColumnThread<Op, VEC> at(a, block);
  const ColumnSlice<Op, VEC, ITEMS> slice(a, at, plan);
  typename Op::Row rows[VEC];
  at.begin(op, a, rows);
  if (slice.template left_parts<0>(op, rows)) return;
  if (slice.slice == 0) at.finish(op, a, rows);
  if constexpr (Op::OUTPUTS > 0 && !Op::APART) {
    slice.each([&](auto& held, const auto&, int64_t element, int some) {
      at.template write<ITEMS>(op, a, element, rows, held, some);
    });
  }
}

}  // namespace fuseline::rows
