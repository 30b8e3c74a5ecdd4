// Kernels of the operators of row_cuda.cuh whose rows are columns: of [outer, n, inner], where a
// row's n elements lie apart and its neighbours' side by side. Lanes take neighbouring columns, as
// many each as an access can have (VEC), and a block's other threads go down them. The order of a
// column's sums does not know VEC, nor how wide a block is.
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

// What a block is: 2^width threads side by side and `depth` down, of which 2^together that follow
// each other put their parts together first. The order of sums depends on the last two.
struct ColumnBlock {
  int width, depth, together;
};

// v, of which the compiler is not to know what it knew: it would multiply for each address instead
// of adding to the last one, and keep for the writes what it asked for the loads.
template <typename V>
__device__ __forceinline__ V forgotten(V v) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(V) == 8) {
    asm volatile("" : "+l"(v));
  } else {
    asm volatile("" : "+r"(v));
  }
#endif
  return v;
}

// Where a thread is.
template <typename Op, int VEC>
struct ColumnThread {
  using T = typename Op::T;
  ColumnBlock block;
  int width, lane, down;
  bool active;
  int64_t column;  // the first
  const T* in[Op::INPUTS];
  OutputPointers<T, Op::OUTPUTS> out;

  __device__ __forceinline__ ColumnThread(const ColumnArgsOf<Op>& a, ColumnBlock block)
      : block(block),
        width(1 << block.width),
        lane(threadIdx.x & (width - 1)),
        down(threadIdx.x >> block.width),
        column(((static_cast<int64_t>(blockIdx.x) << block.width) + lane) * VEC) {
    active = column < a.rows;
    const int64_t slice = active ? column / a.inner : 0;
    const int64_t inside = active ? column - slice * a.inner : 0;
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      in[k] = retained(a.in[k] + slice * a.stride[k] + inside + down * a.step[k]);
    }
    if constexpr (Op::OUTPUTS > 0) out = a.out.at((slice * a.n + down) * a.inner + inside);
  }

  // Of `rows` rows from this thread's on, those that it has something of.
  __device__ __forceinline__ int64_t count(int64_t rows) const {
    return active && down < block.depth ? rows - down : 0;
  }

  // ITEMS elements of each column, `depth` apart from row `first` of this thread's on. All loads
  // are on their way before the first element is made a number, so that a thread waits once: words,
  // because the compiler takes packs apart where they arrive, and waits there.
  template <int ITEMS, typename There>
  __device__ __forceinline__ void load(const ColumnArgsOf<Op>& a, int64_t first,
                                       Packs<Op, 1> (&held)[VEC][ITEMS], const There& there) const {
    using Word = typename WordOf<Pack<T, VEC>>::type;
    const auto nothing = filled<VEC>(round_to<T>(Op::nothing()));
    Word words[Op::INPUTS][ITEMS];
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
      int64_t row = first * a.step[k];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        words[k][i] = reinterpret_cast<const Word&>(nothing);
        if (there(i)) words[k][i] = *reinterpret_cast<const Word*>(in[k] + row);
        row = forgotten(row + block.depth * a.step[k]);
      }
    }
#pragma unroll
    for (int k = 0; k < Op::INPUTS; ++k) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const auto values =
            unpack<typename Op::S>(reinterpret_cast<const Pack<T, VEC>&>(words[k][i]));
#pragma unroll
        for (int v = 0; v < VEC; ++v) held[v][i].v[k].v[0] = values.v[v];
      }
    }
  }

  // Of `count` rows from `first` on.
  template <int ITEMS>
  __device__ __forceinline__ void write(const Op& op, const ColumnArgsOf<Op>& a, int64_t first,
                                        const typename Op::Row (&rows)[VEC],
                                        const Packs<Op, 1> (&held)[VEC][ITEMS], int count) const {
    int64_t row = first * a.inner;
    count = forgotten(count);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (i * block.depth >= count) break;
      Outputs<typename Op::S, VEC, Op::OUTPUTS> y;
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const auto one = op.out(rows[v], held[v][i], NoOperands{});
#pragma unroll
        for (int k = 0; k < Op::OUTPUTS; ++k) y.of[k].v[v] = output(one, k).v[0];
      }
      store_outputs<VEC>(out, row, y);
      row = forgotten(row + block.depth * a.inner);
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
// together is then in different banks. Blocks of many columns are not deep.
constexpr int kColumnParts = 1024 + kWarp;

// The parts of all threads of each column, together, in each of them: first of threads that follow
// each other, then of these. Blocks are whole warps; some threads of the last may have no element.
template <int ROUND, int VEC, typename Part, typename ColumnThread>
__device__ __forceinline__ void whole_columns(Part (&parts)[VEC], const ColumnThread& at) {
  if (at.block.depth == 1) return;
  const int together = 1 << at.block.together, groups = at.block.depth >> at.block.together;
#pragma unroll
  for (int v = 0; v < VEC; ++v) parts[v] = over_lanes(parts[v], together, at.width);
  __shared__ Part scratch[kColumnParts];  // of this round
  const int columns = at.width * VEC, pitch = columns + 1;
  const int group_of_mine = at.down >> at.block.together;
  if (at.down % together == 0 && group_of_mine < groups) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      scratch[group_of_mine * pitch + v * at.width + at.lane] = parts[v];
    }
  }
  __syncthreads();
  // As many neighbouring lanes take a column's parts, and the first leaves them where its own was.
  int log_lanes = 1;
  while (1 << log_lanes < groups) ++log_lanes;
  const int lanes = 1 << log_lanes;
  for (int first = 0; first < columns << log_lanes; first += blockDim.x) {
    const int i = first + threadIdx.x, column = i >> log_lanes, group = i & (lanes - 1);
    const bool there = column < columns;
    const Part all =
        over_lanes(there && group < groups ? scratch[group * pitch + column] : Part::none(), lanes);
    if (there && group == 0) scratch[column] = all;
  }
  __syncthreads();
#pragma unroll
  for (int v = 0; v < VEC; ++v) parts[v] = scratch[v * at.width + at.lane];
}

// The sums over columns of which a thread holds ITEMS elements each.
template <int ROUND, typename Op, int VEC, int ITEMS, typename ColumnThread, typename There>
__device__ __forceinline__ void column_rounds(const Op& op, const ColumnThread& at,
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

// Reads each column once. Needs n <= depth * ITEMS; where a thread has a column ALONE, depth 1.
template <typename Op, int VEC, int ITEMS, int THREADS, bool ALONE>
__global__ void __launch_bounds__(THREADS)
    column_kernel(const __grid_constant__ ColumnArgsOf<Op> a, const __grid_constant__ Op op,
                  ColumnBlock block) {
  if constexpr (ALONE) block.depth = 1, block.together = 0;
  const ColumnThread<Op, VEC> at(a, block);
  const int count = static_cast<int>(at.count(a.n));
  const auto there = [&](int i, int = 0) { return i * at.block.depth < count; };
  typename Op::Row rows[VEC];
  at.begin(op, a, rows);
  Packs<Op, 1> held[VEC][ITEMS];
  at.template load<ITEMS>(a, 0, held, there);
  column_rounds<0>(op, at, rows, held, a.n, there);
  at.finish(op, a, rows);
  if constexpr (Op::OUTPUTS > 0) at.template write<ITEMS>(op, a, 0, rows, held, count);
}

}  // namespace fuseline::rows
