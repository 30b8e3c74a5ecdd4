// Rows that begin anywhere, in 16-byte accesses: a thread's packs count from the beginning of its
// row, so that sums do not depend on where that lies.
#pragma once

#include "fuseline/cuda/packs.cuh"

namespace fuseline {

template <int N>
struct Words {
  unsigned w[N];
};

__device__ __forceinline__ Words<4> load_words(const char* p) {
  const uint4 v = *reinterpret_cast<const uint4*>(p);
  return {{v.x, v.y, v.z, v.w}};
}

// As many bytes from byte `shift` on of lo and hi side by side.
template <int N>
__device__ __forceinline__ Words<N> shifted(const Words<N>& lo, const Words<N>& hi, int shift) {
  unsigned w[2 * N];
  *reinterpret_cast<Words<N>*>(w) = lo;
  *reinterpret_cast<Words<N>*>(w + N) = hi;
#pragma unroll
  for (int i = 0; i < N + N / 2; ++i) w[i] = shift & 2 * N ? w[i + N / 2] : w[i];
  if constexpr (N == 4) {
#pragma unroll
    for (int i = 0; i < N + 1; ++i) w[i] = shift & 4 ? w[i + 1] : w[i];
  }
  Words<N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.w[i] = __funnelshift_r(w[i], w[i + 1], (shift & 3) * 8);
  return out;
}

template <typename T>
using Whole = Pack<T, 16 / sizeof(T)>;
template <typename P, int N>
__device__ __forceinline__ P as_pack(const Words<N>& words) {
  return *reinterpret_cast<const P*>(&words);
}

// Elements col, col + 1, ... of a row of n, and zeros.
template <typename P, typename T>
__device__ __forceinline__ P load_elements(const T* row, int col, int n) {
  P p{};
#pragma unroll
  for (int v = 0; v < static_cast<int>(sizeof(P) / sizeof(T)); ++v) {
    if (col + v < n) p.v[v] = row[col + v];
  }
  return p;
}

// Writes those of a pack's elements to col, col + 1, ... that lie in [low, high).
template <typename T, int VEC>
__device__ __forceinline__ void store_elements(T* row, const Pack<T, VEC>& p, int col, int low,
                                               int high) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    if (col + v >= low && col + v < high) row[col + v] = p.v[v];
  }
}

// A thread's packs of a row, `step` columns apart from `first` on; zero from column `n` on. Memory
// is read in 16 bytes at multiples of 16, two of which a pack is shifted together from, and nothing
// behind the tensor's `end`.
template <int ITEMS, typename T>
__device__ __forceinline__ void load_row(const T* row, int first, int step, int n, const T* end,
                                         Whole<T> (&packs)[ITEMS]) {
  constexpr int VEC = 16 / sizeof(T);
  const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16);
  const char* const base = reinterpret_cast<const char*>(row) - skew;
  const auto at = [&](int col) { return base + static_cast<int64_t>(col) * sizeof(T); };
  const auto inside = [&](int col) {
    return at(col) + (skew ? 32 : 16) <= reinterpret_cast<const char*>(end);
  };
  Words<4> low[ITEMS], high[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = first + i * step;
    const bool there = col < n && inside(col);
    low[i] = high[i] = Words<4>{};
    if (there) low[i] = load_words(at(col));
    if (there && skew) high[i] = load_words(at(col) + 16);
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) packs[i] = as_pack<Whole<T>>(shifted(low[i], high[i], skew));
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = first + i * step;
    if (col + VEC <= n && inside(col)) continue;
    if (col < n && !inside(col)) packs[i] = load_elements<Whole<T>>(row, col, n);
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      if (col + v >= n) packs[i].v[v] = static_cast<T>(0.0f);  // the next row's
    }
  }
}

// Writes a warp's packs to a row that begins anywhere, in whole packs at multiples of their size: a
// pack leaves as part of two of those, the other parts of which neighbouring lanes hold.
template <typename T, int VEC>
class SkewedRow {
 public:
  static constexpr int BYTES = sizeof(Pack<T, VEC>);

  __device__ __forceinline__ explicit SkewedRow(T* row)
      : row_(row),
        before_(static_cast<int>(reinterpret_cast<uintptr_t>(row) % BYTES / sizeof(T))) {}

  // Writes `pack` to `col`, a warp's packs after the call before, unless that is the `first`; the
  // warp's columns end at `end`. All its lanes call.
  __device__ __forceinline__ void put(const Pack<T, VEC>& pack, int col, bool first, int end) {
    const int lane = threadIdx.x % kWarp;
    const Bits mine = *reinterpret_cast<const Bits*>(&pack);
    Bits neighbour;
#pragma unroll
    for (int j = 0; j < BYTES / 4; ++j) {
      neighbour.w[j] = __shfl_sync(kFullMask, mine.w[j], (lane + kWarp - 1) % kWarp);
    }
    const Bits previous = lane == 0 ? left_ : neighbour;
    left_ = neighbour;
    if (col >= end) return;
    const Pack<T, VEC> out =
        before_ ? as_pack<Pack<T, VEC>>(shifted(previous, mine, BYTES - before_ * sizeof(T)))
                : pack;
    // What lies before the warp's first pack another warp writes; behind its last, it itself.
    const bool begins = first && lane == 0;
    const int begin = col - before_;
    if (!(begins && before_) && begin + VEC <= end) {
      store<T, VEC>(row_ + begin, out);
    } else {
      store_elements(row_, out, begin, begins ? col : begin, end);
    }
    if (before_ && col + VEC >= end) store_elements(row_, pack, col, col + VEC - before_, end);
  }

 private:
  using Bits = Words<BYTES / 4>;
  T* const row_;
  const int before_;  // elements between a multiple of a pack's size and the row's beginning
  Bits left_{};       // lane 0: what the last lane had
};

}  // namespace fuseline
