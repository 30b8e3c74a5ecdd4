// Elementwise operators on inputs that lie anyhow. What they write is one run of memory, of which a
// thread makes a pack. Inputs are read where they are: 16 bytes at a time where a pack's elements
// are neighbours, whatever their address, else one by one.
//
// An operator is a type Op:
//   T, INPUTS   the elements, and the tensors of these that are read
//   OF_ROWS     further operands, which have one element for each row, of types that
//   ROW_BYTES   has the sizes of; Row: an element of each
//   row         (operands, places) -> Row
//   of          (values of the inputs, RowsOf<Row>, if any) -> values of the result
//   RUNS        whether all tensors may be runs of memory
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/skew.cuh"

namespace fuseline::pointwise {

constexpr int kThreads = 128, kMostAxes = 4;

// The axes of a run, the fastest first, and where SIDES have their elements: inputs, and operands
// of rows behind them.
template <int SIDES, int INPUTS = SIDES>
struct Places {
  unsigned numel;  // at most 2^30
  int axes;
  Divider sizes[kMostAxes];
  int64_t steps[SIDES][kMostAxes];
  bool dense[INPUTS];  // one after the other, as in the run
  bool all_dense;      // of the inputs
  bool along_rows;     // whether the fastest axis lies in one row

  // Of element i of the run: how far from their first elements SIDES have it. Returns how many of
  // the fastest axis lie before it.
  __device__ __forceinline__ unsigned find(unsigned i, int64_t (&at)[SIDES]) const {
    const unsigned along = axes > 1 ? sizes[0].rest(i) : i;
#pragma unroll
    for (int k = 0; k < SIDES; ++k) at[k] = times(along, steps[k][0]);
#pragma unroll
    for (int d = 1; d < kMostAxes; ++d) {
      if (d >= axes) break;
      const unsigned next = d + 1 < axes ? sizes[d].rest(i) : i;
#pragma unroll
      for (int k = 0; k < SIDES; ++k) at[k] += times(next, steps[k][d]);
    }
    return along;
  }
};

// A pack on its way, which pack() waits for: words of 16 bytes, or of 4 for two elements of 2, at
// multiples of their size. Each word has an element of the pack, so that no page is read that has
// none.
template <typename T, int VEC>
struct Loaded {
  static constexpr int BYTES = VEC * sizeof(T);
  using Whole = Pack<T, VEC>;
  using Word = std::conditional_t<BYTES == 16, uint4, unsigned>;
  static_assert(BYTES == 16 || (BYTES == 4 && VEC == 2));
  static constexpr int kPair = -1;  // two words that have an element each
  Word low, high;
  int skew;  // bytes of `low` before the pack, or kPair

  // Neighbours.
  __device__ __forceinline__ void take(const T* p) {
    skew = static_cast<int>(reinterpret_cast<uintptr_t>(p) % BYTES);
    const char* const base = reinterpret_cast<const char*>(p) - skew;
    low = *reinterpret_cast<const Word*>(base);
    if (skew) high = *reinterpret_cast<const Word*>(base + BYTES);
  }
  // The first `count`, of which `left` lie `step` apart from p, and the others so from `next`,
  // which is as far before them.
  __device__ __forceinline__ void gather(const T* p, const T* next, int left, int64_t step,
                                         int count) {
    const auto element = [&](int v) { return (v < left ? p : next)[v * step]; };
    if constexpr (BYTES == 4) {
      low = high = 0;
      skew = kPair;
      if (count > 0) low = bits(element(0));
      if (count > 1) high = bits(element(1));
    } else {
      Whole whole{};
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if (v < count) whole.v[v] = element(v);
      }
      put(whole);
    }
  }
  // One for all.
  __device__ __forceinline__ void repeat(const T* p) {
    if constexpr (BYTES == 4) {
      low = high = bits(*p);
      skew = kPair;
    } else {
      put(filled<VEC>(*p));
    }
  }

  __device__ __forceinline__ Whole pack() const {
    if constexpr (BYTES == 4) {
      const unsigned word = skew == kPair ? low | high << 16 : __funnelshift_r(low, high, skew * 8);
      return reinterpret_cast<const Whole&>(word);
    } else {
      if (skew == 0) return reinterpret_cast<const Whole&>(low);
      const auto words = [](const Word& w) { return Words<4>{{w.x, w.y, w.z, w.w}}; };
      return as_pack<Whole>(shifted(words(low), words(high), skew));
    }
  }

 private:
  static __device__ __forceinline__ unsigned bits(T v) {
    return reinterpret_cast<const unsigned short&>(v);
  }
  __device__ __forceinline__ void put(const Whole& whole) {
    low = reinterpret_cast<const Word&>(whole);
    skew = 0;
  }
};

template <typename T>
struct Loaded<T, 1> {
  Pack<T, 1> low;

  __device__ __forceinline__ void take(const T* p) { low = load<T, 1>(p); }
  __device__ __forceinline__ void repeat(const T* p) { take(p); }
  __device__ __forceinline__ void gather(const T* p, const T*, int, int64_t, int) { take(p); }
  __device__ __forceinline__ Pack<T, 1> pack() const { return low; }
};

// The `count` elements that lie `step` apart from p, or all that a pack has.
template <typename T, int VEC>
__device__ __forceinline__ void take(Loaded<T, VEC>& to, const T* p, int64_t step, int64_t count) {
  if (VEC == 1 || (count >= VEC && step == 1)) return to.take(p);
  if (count >= VEC && step == 0) return to.repeat(p);
  to.gather(p, p, VEC, step, static_cast<int>(min(count, int64_t{VEC})));
}

template <typename Op>
constexpr int kSides = Op::INPUTS + Op::OF_ROWS;

template <typename Op>
struct Problem {
  using T = typename Op::T;
  const void* in[kSides<Op>];
  T* to;
  Places<kSides<Op>, Op::INPUTS> places;

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
__device__ __forceinline__ auto row_at(const Problem<Op>& a, const int64_t (&at)[kSides<Op>]) {
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
    int64_t at[kSides<Op>];
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

template <typename Op, int VEC>
__device__ __forceinline__ auto made_of(const Pack<typename Op::T, VEC> (&packs)[Op::INPUTS],
                                        const RowsOf<typename RowOf<Op>::type>& rows = {}) {
  Values<Stat<typename Op::T>, VEC> values[Op::INPUTS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) values[k] = unpack<Stat<typename Op::T>>(packs[k]);
  if constexpr (Op::OF_ROWS > 0) {
    return pack<typename Op::T>(Op::of(values, rows));
  } else {
    return pack<typename Op::T>(Op::of(values));
  }
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
    store<T, VEC>(a.to + at * VEC, made_of<Op, VEC>(in[i], rows));
  }
  const unsigned rest = packs * VEC + threadIdx.x;
  if (blockIdx.x > 0 || rest >= a.places.numel) return;
  Pack<T, 1> one[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) one[k] = load<T, 1>(a.input(k) + rest);
  store<T, 1>(a.to + rest, made_of<Op, 1>(one, rows_at<1>(a, rest)));
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
  if (Op::OF_ROWS > 0 || !p.all_dense || !whole) {
    int64_t here[kSides<Op>], next[kSides<Op>];
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
    rows.first = row_at(a, here);
    if (in_two) {
      rows.left = static_cast<int>(alike);
      rows.other = row_at(a, next);
    }
  }
  Pack<T, VEC> packs[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) packs[k] = in[k].pack();
  const Pack<T, VEC> made = made_of<Op, VEC>(packs, rows);
  T* const to = a.to + first;
  if (whole && reinterpret_cast<uintptr_t>(to) % sizeof(made) == 0) {
    store<T, VEC>(to, made);
  } else {
    store_elements(to, made, 0, 0, static_cast<int>(count));
  }
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
  int64_t at[kSides<Op>];
  const unsigned along = p.find(first, at);
  RowsOf<typename RowOf<Op>::type> rows{row_at(a, at), {}, 1};
  const T* in[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) in[k] = a.input(k) + at[k];
  T* const to = a.to + along + times(first - along, down.size);
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
      store<T, VEC>(to + times(i + j, p.sizes[0].by), made_of<Op, VEC>(packs[j], rows));
    }
  }
}

}  // namespace fuseline::pointwise
