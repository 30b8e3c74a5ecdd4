// Elementwise operators on inputs that lie anyhow. What they write is one run of memory, of which a
// thread makes a pack, or several that lie alike. Inputs are read where they are: 16 bytes at a
// time where a pack's elements are neighbours, whatever their address, else one by one.
//
// An operator is a type Op:
//   T, INPUTS   the elements, and the tensors of these that are read
//   OF_ROWS     further operands, which have one element for each row, of types that
//   ROW_BYTES   has the sizes of; Row: an element of each
//   row         (operands, places) -> Row
//   OUTPUTS     the results, which lie alike
//   GAPS        whether these lie anyhow, too, with gaps between rows; not with OF_ROWS
//   of          (values of the inputs, RowsOf<Row>, if any) -> values of the result, or Results
//   RUNS        whether all tensors may be runs of memory
#pragma once

#include "fuseline/cuda/pointwise/pointwise_places.cuh"

namespace fuseline::pointwise {

constexpr int kThreads = 128;

template <typename Op>
constexpr int kSides = Op::INPUTS + Op::OF_ROWS;
// With the results, if their places are not those in the run.
template <typename Op>
constexpr int kPlaced = kSides<Op> + Op::GAPS;

template <typename Op>
struct Problem {
  using T = typename Op::T;
  static_assert(!(Op::GAPS && (Op::OF_ROWS > 0 || Op::RUNS)));
  const void* in[kSides<Op>];
  T* to[Op::OUTPUTS];
  Places<kPlaced<Op>, Op::INPUTS> places;

  __device__ __forceinline__ const T* input(int k) const {
    return retained(static_cast<const T*>(in[k]));
  }
};

// What a pack has of rows: that of its first `left` elements, and that of the others. `first` is
// that of all elements of the run from the pack's to `end`, if that is known.
template <typename Row>
struct RowsOf {
  Row first, other;
  int left;
  unsigned end = 0;
};

template <typename Op, int = Op::OF_ROWS>
struct RowOf {
  using type = typename Op::Row;
};
template <typename Op>
struct RowOf<Op, 0> {
  struct type {};
};

template <typename Op>
__device__ __forceinline__ auto row_at(const Problem<Op>& a, const int64_t (&at)[kPlaced<Op>]) {
  if constexpr (Op::OF_ROWS > 0) {
    return Op::row(a.in + Op::INPUTS, at + Op::INPUTS);
  } else {
    return typename RowOf<Op>::type{};
  }
}

// Those of VEC elements from `first` on, which lie in two rows at most.
template <int VEC, typename Op>
__device__ __forceinline__ auto rows_at(const Problem<Op>& a, unsigned first) {
  RowsOf<typename RowOf<Op>::type> rows{{}, {}, VEC};
  if constexpr (Op::OF_ROWS > 0) {
    int64_t at[kPlaced<Op>];
    const unsigned left = a.places.sizes[0].by - a.places.find(first, at);
    rows.first = row_at(a, at);
    rows.end = first + left;
    if (VEC > 1 && left < VEC) {
      rows.left = static_cast<int>(left);
      a.places.find(first + left, at);
      rows.other = row_at(a, at);
    }
  }
  return rows;
}

// The same as a call of its own, where it is rare.
template <int VEC, typename Op>
__device__ __noinline__ auto other_rows_at(const Problem<Op>& a, unsigned first) {
  return rows_at<VEC>(a, first);
}

// Values of several results, and packs of one or several.
template <typename S, int VEC, int OUTPUTS>
struct Results {
  Values<S, VEC> of[OUTPUTS];
};
template <typename T, int VEC, int OUTPUTS>
struct Packs {
  Pack<T, VEC> of[OUTPUTS];
};

template <typename T, typename S, int VEC>
__device__ __forceinline__ Packs<T, VEC, 1> packs_of(const Values<S, VEC>& made) {
  return {{pack<T>(made)}};
}
template <typename T, typename S, int VEC, int OUTPUTS>
__device__ __forceinline__ auto packs_of(const Results<S, VEC, OUTPUTS>& made) {
  Packs<T, VEC, OUTPUTS> packs;
#pragma unroll
  for (int k = 0; k < OUTPUTS; ++k) packs.of[k] = pack<T>(made.of[k]);
  return packs;
}

template <typename Op, int VEC>
__device__ __forceinline__ auto made_of(const Pack<typename Op::T, VEC> (&packs)[Op::INPUTS],
                                        const RowsOf<typename RowOf<Op>::type>& rows = {}) {
  Values<Stat<typename Op::T>, VEC> values[Op::INPUTS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) values[k] = unpack<Stat<typename Op::T>>(packs[k]);
  if constexpr (Op::OF_ROWS > 0) {
    return packs_of<typename Op::T>(Op::of(values, rows));
  } else {
    return packs_of<typename Op::T>(Op::of(values));
  }
}

// Writes packs of the results to one place in each.
template <typename T, int VEC, int OUTPUTS>
__device__ __forceinline__ void store_all(T* const (&to)[OUTPUTS], int64_t at,
                                          const Packs<T, VEC, OUTPUTS>& made) {
#pragma unroll
  for (int k = 0; k < OUTPUTS; ++k) store<T, VEC>(to[k] + at, made.of[k]);
}

// Of inputs that lie as the result, all at multiples of 16 bytes, and VEC elements of a row or
// more. A thread has BYTES of a tensor, and one of the first block an element behind the last pack.
template <typename Op, int BYTES>
__global__ void __launch_bounds__(kThreads) run_kernel(const __grid_constant__ Problem<Op> a) {
  using T = typename Op::T;
  constexpr int VEC = kVec<T>, PACKS = BYTES / 16, INPUTS = Op::INPUTS;
  const unsigned packs = a.places.numel / VEC;
  const unsigned first = blockIdx.x * (PACKS * kThreads) + threadIdx.x;
  Pack<T, VEC> in[PACKS][INPUTS];
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const unsigned at = first + i * kThreads;
    if (at >= packs) break;
#pragma unroll
    for (int k = 0; k < INPUTS; ++k) in[i][k] = load<T, VEC>(a.input(k) + at * VEC);
  }
  RowsOf<typename RowOf<Op>::type> rows;
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const unsigned at = first + i * kThreads;
    if (at >= packs) break;
    if (i == 0) {
      rows = rows_at<VEC>(a, at * VEC);
    } else if (Op::OF_ROWS > 0 && at * VEC + VEC > rows.end) {
      rows = other_rows_at<VEC>(a, at * VEC);
    }
    store_all(a.to, at * VEC, made_of<Op, VEC>(in[i], rows));
  }
  const unsigned rest = packs * VEC + threadIdx.x;
  if (blockIdx.x > 0 || rest >= a.places.numel) return;
  Pack<T, 1> one[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) one[k] = load<T, 1>(a.input(k) + rest);
  store_all(a.to, rest, made_of<Op, 1>(one, rows_at<1>(a, rest)));
}

// Needs VEC elements or more along the fastest axis, so that a pack lies in two pieces at most, and
// of more than two that this axis lies along rows.
template <typename Op, int VEC>
__global__ void __launch_bounds__(kThreads)
    pointwise_kernel(const __grid_constant__ Problem<Op> a) {
  using T = typename Op::T;
  constexpr int INPUTS = Op::INPUTS;
  const auto& p = a.places;
  const unsigned first = (blockIdx.x * kThreads + threadIdx.x) * VEC;
  if (first >= p.numel) return;
  const unsigned count = min(p.numel - first, unsigned{VEC});
  const bool whole = count == VEC;
  Loaded<T, VEC> in[INPUTS];
  RowsOf<typename RowOf<Op>::type> rows{{}, {}, VEC};
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) {
    if (p.dense[k] && whole) in[k].take(a.input(k) + first);
  }
  Target target{first, 0, 1, VEC, static_cast<int>(count)};
  if (Op::OF_ROWS > 0 || Op::GAPS || !p.all_dense || !whole) {
    int64_t here[kPlaced<Op>], next[kPlaced<Op>];
    const unsigned left = p.sizes[0].by - p.find(first, here);
    const unsigned alike = Op::OF_ROWS > 0 && VEC == 2 && !p.along_rows ? 1 : left;  // of one row
    const bool in_two = VEC > 1 && alike < count;
    if (in_two) p.find(first + alike, next);
#pragma unroll
    for (int k = 0; k < INPUTS; ++k) {
      if (p.dense[k] && whole) continue;
      const int64_t step = p.steps[k][0];
      const T *const base = a.input(k), *const from = base + here[k];
      if (in_two && left < count) {
        in[k].gather(from, base + next[k] - left * step, static_cast<int>(left), step, count);
      } else {
        take<T, VEC>(in[k], from, step, count);
      }
    }
    if constexpr (Op::GAPS) {
      constexpr int k = kSides<Op>;
      const int64_t step = p.steps[k][0];
      target.at = here[k];
      target.step = step;
      if (in_two) {
        target.left = static_cast<int>(left);
        target.next = next[k] - left * step;
      }
    }
    rows.first = row_at(a, here);
    if (in_two) {
      rows.left = static_cast<int>(alike);
      rows.other = row_at(a, next);
    }
  }
  Pack<T, VEC> packs[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) packs[k] = in[k].pack();
  const auto made = made_of<Op, VEC>(packs, rows);
#pragma unroll
  for (int k = 0; k < Op::OUTPUTS; ++k) target.put(a.to[k], made.of[k]);
}

// An axis that places leave out: how far apart inputs have its elements, of which a thread has
// `each` at most.
template <int INPUTS>
struct Down {
  unsigned size, each;
  int64_t steps[INPUTS];
};

// Of rows that lie side by side, so that the fastest axis has one element of each and the next one,
// `down`, lies along them. A thread has elements of VEC rows, neighbours, and finds these once.
template <typename Op, int VEC>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(const __grid_constant__ Problem<Op> a,
                   const __grid_constant__ Down<Op::INPUTS> down) {
  using T = typename Op::T;
  constexpr int INPUTS = Op::INPUTS, AT_ONCE = 4;
  static_assert(VEC <= 2);
  const auto& p = a.places;
  const unsigned first = (blockIdx.x * kThreads + threadIdx.x) * VEC;
  const unsigned begin = blockIdx.y * down.each, end = min(down.size, begin + down.each);
  if (first >= p.numel) return;
  int64_t at[kPlaced<Op>];
  const unsigned along = p.find(first, at);
  RowsOf<typename RowOf<Op>::type> rows{row_at(a, at), {}, 1};
  const T* in[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) in[k] = a.input(k) + at[k];
  const int64_t to = along + times(first - along, down.size);
  if (VEC > 1) {
    p.find(first + 1, at);
    rows.other = row_at(a, at);
  }
  for (unsigned i = begin; i < end; i += AT_ONCE) {
    Pack<T, VEC> packs[AT_ONCE][INPUTS];
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (i + j >= end) break;
#pragma unroll
      for (int k = 0; k < INPUTS; ++k) {
        packs[j][k] = load<T, VEC>(in[k] + times(i + j, down.steps[k]));
      }
    }
#pragma unroll
    for (int j = 0; j < AT_ONCE; ++j) {
      if (i + j >= end) break;
      store_all(a.to, to + times(i + j, p.sizes[0].by), made_of<Op, VEC>(packs[j], rows));
    }
  }
}

}  // namespace fuseline::pointwise
