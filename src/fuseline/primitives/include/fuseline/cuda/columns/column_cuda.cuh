// Kernels of the operators of row_cuda.cuh whose rows are columns: of [outer, n, inner], where a
// row's n elements lie apart and its neighbours' side by side. Lanes take neighbouring columns, VEC
// each, and a block's other threads go down them.
#pragma once

#include "fuseline/cuda/columns/column_places.cuh"
#include "fuseline/cuda/rows/row_cuda.cuh"

namespace fuseline::rows {

// Element k of column c of an input lies at c / inner * stride + c % inner + k * step. `rows` are
// all columns.
template <typename T, int INPUTS, int OUTPUTS>
struct ColumnArgs : Args<T, INPUTS, OutputPointers<T, OUTPUTS>> {
  int64_t step[INPUTS];
  int64_t inner;
  ColumnPlaces places;  // of what begin() reads and finish() writes
};
template <typename Op>
using ColumnArgsOf = ColumnArgs<typename Op::T, Op::INPUTS, Op::OUTPUTS>;

// Logarithms of what a block is: threads side by side, threads down, and how many of these that
// follow each other put their parts together first. The order of sums depends on the last two.
struct ColumnBlock {
  int width, depth, together;
};

// Where a thread is: `width` threads of VEC columns side by side, `depth` down them.
template <typename Op, int VEC>
struct ColumnThread {
  using T = typename Op::T;
  ColumnBlock block;
  int width, depth, lane, down;
  bool active;
  int64_t column;
  const T* in[Op::INPUTS];
  OutputPointers<T, Op::OUTPUTS> out;

  __device__ __forceinline__ ColumnThread(const ColumnArgsOf<Op>& a, ColumnBlock block)
      : block(block),
        width(1 << block.width),
        depth(1 << block.depth),
        lane(threadIdx.x & (width - 1)),
        down(threadIdx.x >> block.width),
        column((static_cast<int64_t>(blockIdx.x) * width + lane) * VEC) {
    active = column < a.rows;
    const int64_t slice = active ? column / a.inner : 0;
    const int64_t inside = active ? column - slice * a.inner : 0;
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      in[k] = retained(a.in[k] + slice * a.stride[k] + inside + down * a.step[k]);
    }
    if constexpr (Op::OUTPUTS > 0) out = a.out.at((slice * a.n + down) * a.inner + inside);
  }

  // ITEMS elements of each column, `depth` apart from row `first` of this thread's on.
  template <int ITEMS, typename There>
  __device__ __forceinline__ void load(const ColumnArgsOf<Op>& a, int64_t first,
                                       Packs<Op, 1> (&held)[VEC][ITEMS], const There& there) const {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) held[v][i] = Packs<Op, 1>::none();
      if (!there(i)) continue;
#pragma unroll
      for (int k = 0; k < Op::INPUTS; ++k) {
        const auto values = unpack<typename Op::S>(
            fuseline::load<T, VEC>(in[k] + (first + static_cast<int64_t>(i) * depth) * a.step[k]));
#pragma unroll
        for (int v = 0; v < VEC; ++v) held[v][i].v[k].v[0] = values.v[v];
      }
    }
  }

  template <int ITEMS, typename There>
  __device__ __forceinline__ void write(const Op& op, const ColumnArgsOf<Op>& a, int64_t first,
                                        const typename Op::Row (&rows)[VEC],
                                        const Packs<Op, 1> (&held)[VEC][ITEMS],
                                        const There& there) const {
    OutputPointers<T, Op::OUTPUTS> to = out.at(first * a.inner);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (!there(i)) continue;
      Outputs<typename Op::S, VEC, Op::OUTPUTS> y;
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const auto one = op.out(rows[v], held[v][i], NoOperands{});
#pragma unroll
        for (int k = 0; k < Op::OUTPUTS; ++k) y.of[k].v[v] = output(one, k).v[0];
      }
      store_outputs<VEC>(to, 0, y);
      to = to.at(depth * a.inner);
    }
  }

  __device__ __forceinline__ void begin(const Op& op, const ColumnArgsOf<Op>& a,
                                        typename Op::Row (&rows)[VEC]) const {
#pragma unroll
    for (int v = 0; v < VEC; ++v) rows[v] = op.begin(a, active ? a.places(column + v) : 0);
  }
  __device__ __forceinline__ void finish(const Op& op, const ColumnArgsOf<Op>& a,
                                         const typename Op::Row (&rows)[VEC]) const {
    if (!active || down != 0) return;
#pragma unroll
    for (int v = 0; v < VEC; ++v) op.finish(rows[v], a.places(column + v));
  }
};

// Parts that the threads of a block leave for each other, and a column more of them: what is read
// together is then in different banks.
constexpr int kColumnParts = kMaxBlock + kWarp;

// The parts of all threads of each column, together, in each of them: first of threads that follow
// each other, then of these.
template <int ROUND, int VEC, typename Part, typename ColumnThread>
__device__ __forceinline__ void whole_columns(Part (&parts)[VEC], const ColumnThread& at) {
  __shared__ Part scratch[kColumnParts];  // of this round
  const int together = 1 << at.block.together, log_groups = at.block.depth - at.block.together;
  const int groups = 1 << log_groups;
#pragma unroll
  for (int v = 0; v < VEC; ++v) parts[v] = over_lanes(parts[v], together, at.width);
  if (groups == 1) return;
  const int columns = at.width * VEC, pitch = columns + 1;
  if (at.down % together == 0) {
    const int group = at.down >> at.block.together;
#pragma unroll
    for (int v = 0; v < VEC; ++v) scratch[group * pitch + v * at.width + at.lane] = parts[v];
  }
  __syncthreads();
  // As many neighbouring lanes take a column's parts, and the first leaves them where its own was.
  for (int first = 0; first < columns * groups; first += blockDim.x) {
    const int i = first + threadIdx.x, column = i >> log_groups, group = i & (groups - 1);
    const bool there = column < columns;
    const Part all = over_lanes(there ? scratch[group * pitch + column] : Part::none(), groups);
    if (there && group == 0) scratch[column] = all;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < VEC; ++v) parts[v] = scratch[v * at.width + at.lane];
}

// The sums over columns of which a thread holds ITEMS elements each.
template <int ROUND, typename Op, int VEC, int ITEMS, typename There>
__device__ __forceinline__ void column_rounds(const Op& op, const ColumnThread<Op, VEC>& at,
                                              typename Op::Row (&rows)[VEC],
                                              Packs<Op, 1> (&held)[VEC][ITEMS], int64_t n,
                                              const There& there) {
  if constexpr (ROUND < Op::ROUNDS) {
    typename Op::template Part<ROUND> parts[VEC];
#pragma unroll
    for (int v = 0; v < VEC; ++v) parts[v] = op.template sum<ROUND>(rows[v], held[v], there);
    whole_columns<ROUND>(parts, at);
#pragma unroll
    for (int v = 0; v < VEC; ++v) op.template end<ROUND>(rows[v], parts[v], n);
    column_rounds<ROUND + 1>(op, at, rows, held, n, there);
  }
}

// Reads each column once. Needs n <= depth * ITEMS.
template <typename Op, int VEC, int ITEMS>
__global__ void __launch_bounds__(kMaxBlock)
    column_kernel(const __grid_constant__ ColumnArgsOf<Op> a, const __grid_constant__ Op op,
                  ColumnBlock block) {
  const ColumnThread<Op, VEC> at(a, block);
  const int count = (at.active ? static_cast<int>(a.n) : 0) - at.down;  // from this thread's on
  const auto there = [&](int i, int = 0) { return i * at.depth < count; };
  typename Op::Row rows[VEC];
  at.begin(op, a, rows);
  Packs<Op, 1> held[VEC][ITEMS];
  at.template load<ITEMS>(a, 0, held, there);
  column_rounds<0>(op, at, rows, held, a.n, there);
  at.finish(op, a, rows);
  if constexpr (Op::OUTPUTS > 0) at.template write<ITEMS>(op, a, 0, rows, held, there);
}

}  // namespace fuseline::rows
