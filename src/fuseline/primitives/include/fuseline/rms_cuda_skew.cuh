// Forward kernel of the norm for long rows that 16 bytes do not divide, or that are misaligned.
#pragma once

#include "fuseline/rms_cuda_fwd.cuh"

namespace fuseline::rms {

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

// The packs of one thread, `first`, first + 32, ... of a row that begins anywhere, counted from its
// beginning; zero behind its end. Memory is read in 16 bytes at multiples of 16, two of which a
// pack is shifted together from, and nothing behind the tensor's `end`.
template <int ITEMS, typename T>
__device__ __forceinline__ void load_row(const T* row, int n, const T* end, int first,
                                         Whole<T> (&packs)[ITEMS]) {
  constexpr int VEC = 16 / sizeof(T);
  const int skew = static_cast<int>(reinterpret_cast<uintptr_t>(row) % 16);
  const char* const base = reinterpret_cast<const char*>(row) - skew;
  const auto inside = [&](int k) {
    return base + (k + (skew ? 2 : 1)) * 16 <= reinterpret_cast<const char*>(end);
  };
  Words<4> low[ITEMS], high[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int k = first + i * kWarp;
    const bool there = k * VEC < n && inside(k);
    low[i] = high[i] = Words<4>{};
    if (there) low[i] = load_words(base + k * 16);
    if (there && skew) high[i] = load_words(base + k * 16 + 16);
  }
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) packs[i] = as_pack<Whole<T>>(shifted(low[i], high[i], skew));
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int k = first + i * kWarp, col = k * VEC;
    if (col < n && !inside(k)) packs[i] = load_elements<Whole<T>>(row, col, n);
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      if (col + v >= n) packs[i].v[v] = static_cast<T>(0.0f);  // the next row's
    }
  }
}

// Writes them, or what became of them, in whole packs at multiples of their size: a pack leaves as
// part of two of those, the other parts of which the neighbouring lanes hold. All lanes of a warp
// call.
template <int ITEMS, typename T, int VEC>
__device__ __forceinline__ void store_row(T* row, int n, int first,
                                          const Pack<T, VEC> (&packs)[ITEMS]) {
  constexpr int BYTES = sizeof(Pack<T, VEC>);
  using Bits = Words<BYTES / 4>;
  const int lane = threadIdx.x % kWarp;
  // Elements between a multiple of a pack's size and the row's beginning.
  const int before = static_cast<int>(reinterpret_cast<uintptr_t>(row) % BYTES / sizeof(T));
  Bits left{};  // lane 0: what the last lane had
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = (first + i * kWarp) * VEC;
    const Bits mine = *reinterpret_cast<const Bits*>(&packs[i]);
    Bits neighbour;
#pragma unroll
    for (int j = 0; j < BYTES / 4; ++j) {
      neighbour.w[j] = __shfl_sync(kFullMask, mine.w[j], (lane + kWarp - 1) % kWarp);
    }
    const Bits previous = lane == 0 ? left : neighbour;
    left = neighbour;
    const Pack<T, VEC> out =
        before ? as_pack<Pack<T, VEC>>(shifted(previous, mine, BYTES - before * sizeof(T)))
               : packs[i];
    // What lies before a warp's first pack, its neighbour writes; behind its last, it itself.
    const int begin = lane == 0 && i == 0 ? col : col - before;
    const bool last = (lane == kWarp - 1 && i == ITEMS - 1) || col + VEC >= n;
    if (col < n && begin == col - before && begin + VEC <= n) {
      store<T, VEC>(row + begin, out);
    } else if (col < n) {
      store_elements(row, out, col - before, begin, n);
    }
    if (before && last && col < n) store_elements(row, packs[i], col, col + VEC - before, n);
  }
}

// Owns one row; a warp has ITEMS * 32 neighbouring packs of it, which count from its beginning,
// wherever it lies, so that the order of its sum is always the same.
template <typename T, typename W, int ITEMS, int MAX_THREADS, bool ADDS, typename Y>
__global__ void __launch_bounds__(MAX_THREADS, 1)
    fwd_skew_kernel(const __grid_constant__ FwdArgs<T, W, ADDS, Y> a) {
  using S = Stat<T>;
  constexpr int VEC = 16 / sizeof(T);
  __shared__ S scratch[kWarp];
  __shared__ double scratch2[kWarp];
  const int64_t row = blockIdx.x;
  const int n = static_cast<int>(a.n);
  const int first = threadIdx.x / kWarp * ITEMS * kWarp + threadIdx.x % kWarp;
  const auto scale = a.load_scale();
  Whole<T> packs[ITEMS];
  load_row(a.x + row * a.x_stride, n, a.x + (a.rows - 1) * a.x_stride + n, first, packs);
  if constexpr (ADDS) {
    Whole<T> other[ITEMS];
    const T* const end = a.residual + (a.rows - 1) * a.residual_stride + n;
    load_row(a.residual + row * a.residual_stride, n, end, first, other);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) packs[i] = sum_of(packs[i], other[i]);
    store_row(a.new_residual + row * a.n, n, first, packs);
  }
  const bool vector_weight = a.weight && reinterpret_cast<uintptr_t>(a.weight) % 16 == 0;
  Pack<W, VEC> weights[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = (first + i * kWarp) * VEC;
    weights[i] = ones<W, VEC>();
    if (vector_weight && col + VEC <= n) {
      weights[i] = load<W, VEC>(a.weight + col);
    } else if (a.weight && col < n) {
      weights[i] = load_elements<Pack<W, VEC>>(a.weight, col, n);
    }
  }
  const auto divide = divisor(scale);
  S sum = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) sum += square_sum(packs[i]);
  sum = row_sum<true>(sum, blockDim.x, scratch);
  const S square = mean_of(sum, a.count, a.inv_n);
  const S eps = static_cast<S>(a.eps), largest = largest_of(square, eps);
  const bool again = needs_fallback(largest);
  if (fallback<true>(a, row, largest, again, threadIdx.x, blockDim.x, scratch2)) return;

  const S rstd = inverse_sqrt<T>(square + eps);
  if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
  Pack<Y, VEC> y[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    y[i] = normalise<Y>(packs[i], rstd, weights[i], a.weight_offset, divide);
  store_row(a.y + row * a.n, n, first, y);
}

}  // namespace fuseline::rms
