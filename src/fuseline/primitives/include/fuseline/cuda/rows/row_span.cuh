// Which columns of a row are a thread's, and the packs of these.
#pragma once

#include "fuseline/cuda/packs.cuh"

namespace fuseline::rows {

__host__ __device__ constexpr int log2_of(int power) {
  return power > 1 ? 1 + log2_of(power / 2) : 0;
}

// The columns of a thread: packs of VEC from `first` on, `step` apart, which end `count` columns
// behind it. WHOLE: with a whole pack. An element of a pack is `next` before the one that follows,
// `pair` before the one after that: in memory's order 1 and 2.
template <int VEC, bool WHOLE>
struct Span {
  static constexpr int WIDTH = VEC;
  int first, count, step;
  int pair = 2, next = 1;

  // Elements side by side with those of the other lanes, pairs of them if `even`: the banks of
  // shared memory do not conflict. `lane` of `width`, of columns from `begin` to `end`.
  static __device__ __forceinline__ Span spread(int begin, int end, int lane, int width,
                                                bool even) {
    const int first = begin + (even ? 2 * lane : lane);
    return {first, end - first, width * VEC, 2 * width, even ? 1 : width};
  }
  __device__ __forceinline__ int column(int i, int v = 0) const {
    return first + i * step + v / 2 * pair + v % 2 * next;
  }
  // Where element v of a pack lies of which `from` is the first. The second one has an address of
  // its own, so that the others are as far behind one of these two as the compiler knows.
  template <typename T>
  __device__ __forceinline__ T* place(T* from, int v) const {
    return (v % 2 ? from + next : from) + v / 2 * pair;
  }
  __device__ __forceinline__ int left(int i) const { return count - i * step; }
  __device__ __forceinline__ bool operator()(int i) const { return i * step < count; }
  __device__ __forceinline__ bool operator()(int i, int v) const {
    if constexpr (WHOLE) return i * step < count;
    return i * step + v / 2 * pair < (v % 2 ? count - next : count);
  }
  // Whether the elements are pairs, side by side at even addresses of a row, from an even column.
  template <typename T>
  __device__ __forceinline__ bool in_pairs(const T* row) const {
    return VEC > 1 && next == 1 && count % 2 == 0 &&
           reinterpret_cast<uintptr_t>(row) % (2 * sizeof(T)) == 0;
  }
};

// Those of a thread of a block of 2^log_threads that has columns [begin, end) of a row, at most
// `slice`: each warp has packs side by side, as many as another, so that these are few however
// short the row is.
template <int VEC, bool WHOLE>
__device__ __forceinline__ Span<VEC, WHOLE> block_span(int begin, int end, int slice,
                                                       int log_threads) {
  constexpr int LOG_VEC = log2_of(VEC);
  const int warp = threadIdx.x / kWarp;
  const int each = (slice + (VEC << log_threads) - 1) >> (LOG_VEC + log_threads);
  const int first = begin + warp * each * kWarp * VEC;
  const int lane = threadIdx.x % kWarp * VEC;
  return {first + lane, min(end - first, each * kWarp * VEC) - lane, kWarp * VEC};
}

template <typename T, int VEC>
__device__ __forceinline__ void put(Pack<T, VEC>& to, int v, const T& one) {
  to.v[v] = one;
}
template <typename T, int VEC>
__device__ __forceinline__ void put(Pack<T, VEC>& to, int v, const Pack<T, 2>& two) {
  to.v[v] = two.v[0];
  to.v[v + 1] = two.v[1];
}

// Elements of a pack on their way from memory, each in a register of its own, or two half types in
// that of the first: what puts half types in one register, or takes them apart, waits for them.
template <typename T, int VEC>
struct Loose {
  static constexpr bool HALF = sizeof(T) == 2;
  using Word = std::conditional_t<HALF, uint32_t, T>;
  using Bits = std::conditional_t<HALF, uint16_t, T>;
  Word words[VEC];

  // in_pairs: whether half types came by two.
  __device__ __forceinline__ Pack<T, VEC> pack(bool in_pairs = false) const {
    Pack<T, VEC> p;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      Word word = words[v];
      if constexpr (HALF && VEC > 1) {
        if (v % 2 && in_pairs) word = words[v - 1] >> 16;
      }
      const auto bits = static_cast<Bits>(word);
      p.v[v] = reinterpret_cast<const T&>(bits);
    }
    return p;
  }
};
template <typename T, int VEC>
__device__ __forceinline__ void put(Loose<T, VEC>& to, int v, const T& one) {
  to.words[v] = reinterpret_cast<const typename Loose<T, VEC>::Bits&>(one);
}
template <typename T, int VEC>
__device__ __forceinline__ void put(Loose<T, VEC>& to, int v, const Pack<T, 2>& two) {
  if constexpr (Loose<T, VEC>::HALF) {
    to.words[v] = reinterpret_cast<const uint32_t&>(two);
  } else {
    to.words[v] = two.v[0];
    to.words[v + 1] = two.v[1];
  }
}

// So many elements have a question each: few instructions are sooner run than jumped over.
constexpr int kFew = 4;

// Loads what is there of pack i of a row, by single elements or IN_PAIRS, into a Pack or Loose.
template <bool IN_PAIRS, typename T, typename Span, typename To>
__device__ __forceinline__ void load_pack(const T* row, const Span& at, int i, To& to) {
  constexpr int VEC = Span::WIDTH, STEP = IN_PAIRS ? 2 : 1;
  const T* const from = row + at.column(i);
  const auto load_at = [&](int v) {
    if constexpr (IN_PAIRS) {
      put(to, v, load<T, 2>(at.place(from, v)));
    } else {
      put(to, v, *at.place(from, v));
    }
  };
  if (VEC > kFew && at(i, VEC - 1)) {  // one question for a pack
#pragma unroll
    for (int v = 0; v < VEC; v += STEP) load_at(v);
  } else {
#pragma unroll
    for (int v = 0; v < VEC; v += STEP) {
      if (at(i, v)) load_at(v);
    }
  }
}
template <typename T, typename Span, int VEC>
__device__ __forceinline__ void load_pack(const T* row, const Span& at, int i, Pack<T, VEC>& to) {
  at.in_pairs(row) ? load_pack<true>(row, at, i, to) : load_pack<false>(row, at, i, to);
}

// Writes a pack of values there.
template <typename T, typename S, int VEC>
__device__ __forceinline__ void store_pack(T* row, const Values<S, VEC>& values,
                                           const Span<VEC, false>& at, int i, bool in_pairs) {
  const auto p = pack<T>(values);
  T* const to = row + at.column(i);
  const auto store_those = [&](const auto& there) {
    if (in_pairs) {
#pragma unroll
      for (int v = 0; v < VEC; v += 2) {
        if (there(v)) store<T, 2>(at.place(to, v), Pack<T, 2>{{p.v[v], p.v[v + 1]}});
      }
    } else {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if (there(v)) *at.place(to, v) = p.v[v];
      }
    }
  };
  if (VEC > kFew && at(i, VEC - 1)) {
    store_those([](int) { return true; });
  } else {
    store_those([&](int v) { return at(i, v); });
  }
}

}  // namespace fuseline::rows
