// Elementwise operators on inputs that lie anyhow. What they write is one run of memory, of which a
// thread makes a pack. Inputs are read where they are: 16 bytes at a time where a pack's elements
// are neighbours, whatever their address, else one by one.
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/skew.cuh"

namespace fuseline::pointwise {

constexpr int kThreads = 128, kMostAxes = 4;

// The axes of a run, the fastest first, and where inputs have their elements.
template <int INPUTS>
struct Places {
  unsigned numel;  // at most 2^30
  int axes;
  Divider sizes[kMostAxes];
  int64_t steps[INPUTS][kMostAxes];
  bool dense[INPUTS];  // one after the other, as in the run
  bool all_dense;

  // Of element i of the run: how far from their first elements inputs have it. Returns how many of
  // the fastest axis lie before it.
  __device__ __forceinline__ unsigned find(unsigned i, int64_t (&at)[INPUTS]) const {
    const unsigned along = axes > 1 ? sizes[0].rest(i) : i;
#pragma unroll
    for (int k = 0; k < INPUTS; ++k) at[k] = times(along, steps[k][0]);
#pragma unroll
    for (int d = 1; d < kMostAxes; ++d) {
      if (d >= axes) break;
      const unsigned next = d + 1 < axes ? sizes[d].rest(i) : i;
#pragma unroll
      for (int k = 0; k < INPUTS; ++k) at[k] += times(next, steps[k][d]);
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

// An operator Op of INPUTS tensors of elements T has `of`: values of the result of those of inputs.
// RUNS: all of them may be runs of memory.
template <typename Op>
struct Problem {
  using T = typename Op::T;
  const T* in[Op::INPUTS];
  T* to;
  Places<Op::INPUTS> places;
};

template <typename Op, int VEC>
__device__ __forceinline__ auto made_of(const Pack<typename Op::T, VEC> (&packs)[Op::INPUTS]) {
  Values<Stat<typename Op::T>, VEC> values[Op::INPUTS];
#pragma unroll
  for (int k = 0; k < Op::INPUTS; ++k) values[k] = unpack<Stat<typename Op::T>>(packs[k]);
  return pack<typename Op::T>(Op::of(values));
}

// Of inputs that lie as the result, all at multiples of 16 bytes. A thread has BYTES of a tensor,
// and one of the first block an element behind the last pack.
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
    for (int k = 0; k < INPUTS; ++k) in[i][k] = load<T, VEC>(retained(a.in[k]) + at * VEC);
  }
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const unsigned at = first + i * kThreads;
    if (at >= packs) break;
    store<T, VEC>(a.to + at * VEC, made_of<Op, VEC>(in[i]));
  }
  const unsigned rest = packs * VEC + threadIdx.x;
  if (blockIdx.x > 0 || rest >= a.places.numel) return;
  Pack<T, 1> one[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) one[k] = load<T, 1>(a.in[k] + rest);
  store<T, 1>(a.to + rest, made_of<Op, 1>(one));
}

// Needs VEC elements or more along the fastest axis, so that a pack lies in two pieces at most.
template <typename Op, int VEC>
__global__ void __launch_bounds__(kThreads)
    pointwise_kernel(const __grid_constant__ Problem<Op> a) {
  using T = typename Op::T;
  constexpr int INPUTS = Op::INPUTS;
  const Places<INPUTS>& p = a.places;
  const unsigned first = (blockIdx.x * kThreads + threadIdx.x) * VEC;
  if (first >= p.numel) return;
  const int count = static_cast<int>(min(p.numel - first, unsigned{VEC}));
  const bool whole = count == VEC;
  Loaded<T, VEC> in[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) {
    if (p.dense[k] && whole) in[k].take(retained(a.in[k]) + first);
  }
  if (!p.all_dense || !whole) {
    int64_t here[INPUTS], next[INPUTS];
    const unsigned left = p.sizes[0].by - p.find(first, here);
    const bool in_two = left < static_cast<unsigned>(count);
    if (in_two) p.find(first + left, next);
#pragma unroll
    for (int k = 0; k < INPUTS; ++k) {
      if (p.dense[k] && whole) continue;
      const int64_t step = p.steps[k][0];
      const T *const base = retained(a.in[k]), *const from = base + here[k];
      if (in_two) {
        in[k].gather(from, base + next[k] - left * step, static_cast<int>(left), step, count);
      } else {
        take<T, VEC>(in[k], from, step, count);
      }
    }
  }
  Pack<T, VEC> packs[INPUTS];
#pragma unroll
  for (int k = 0; k < INPUTS; ++k) packs[k] = in[k].pack();
  const Pack<T, VEC> made = made_of<Op, VEC>(packs);
  T* const to = a.to + first;
  if (whole && reinterpret_cast<uintptr_t>(to) % sizeof(made) == 0) {
    store<T, VEC>(to, made);
  } else {
    store_elements(to, made, 0, 0, count);
  }
}

}  // namespace fuseline::pointwise
