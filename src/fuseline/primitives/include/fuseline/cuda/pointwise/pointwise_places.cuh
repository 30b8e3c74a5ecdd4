// Where the elements of a run lie in other tensors, and packs of them on their way from and to
// there.
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/skew.cuh"

namespace fuseline::pointwise {

constexpr int kMostAxes = 4;

// The axes of a run, the fastest first, and where SIDES have their elements: inputs, and operands
// of rows or results with gaps behind them.
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

// Where the first `count` elements of a pack belong in a result: `left` of them `step` apart from
// `at` on, and the others so from `next` on, which is as far before them.
struct Target {
  int64_t at, next, step;
  int left, count;

  template <typename T, int VEC>
  __device__ __forceinline__ void put(T* to, const Pack<T, VEC>& made) const {
    const bool whole = left >= VEC && count == VEC && step == 1;
    if (whole && reinterpret_cast<uintptr_t>(to + at) % sizeof(made) == 0) {
      return store<T, VEC>(to + at, made);
    }
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      if (v < count) to[(v < left ? at : next) + v * step] = made.v[v];
    }
  }
};

}  // namespace fuseline::pointwise
