// What a row of the norms' backward is made of: arguments, statistics, sums and gradients.
// With g = dy * (weight_offset + weight), over a row:
//   root mean square   xhat = x * rstd             dx = rstd * (g - xhat * mean(g * xhat))
//   centred            xhat = (x - mean) * rstd    dx = rstd * (g - mean(g) - xhat * mean(g *
//   xhat))
// and over a column dweight = sum of dy * xhat, dbias = sum of dy.
#pragma once

#include "fuseline/cuda/norm/rms_cuda_launch.h"
#include "fuseline/cuda/norm/rms_cuda_math.cuh"

namespace fuseline::rms {

template <Kind KIND>
constexpr bool kIsCentred = KIND == Kind::kCentred;

// What a kind has besides: what is added to dx, if it is not null; the saved means.
template <typename T, Kind KIND>
struct Besides {};
template <typename T>
struct Besides<T, Kind::kAdds> {
  const T* added;
  int64_t added_stride;
};
template <typename T>
struct Besides<T, Kind::kCentred> {
  const Stat<T>* mean;
};

// What a row is normalised by. A centred row's xhat is off by a shift: its mean, which the rounding
// of the saved mean leaves. In fp32 of a mean of 1e4 that may be half of a spread of 1e-3.
template <typename S, Kind KIND>
struct Moments {
  S rstd = 0;
  __device__ __forceinline__ S xhat(S x) const { return x * rstd; }
};
template <typename S>
struct Moments<S, Kind::kCentred> {
  S rstd = 0, mean = 0;
  __device__ __forceinline__ S xhat(S x) const { return (x - mean) * rstd; }
};

// Sums over columns: dweight and, of a centred norm, dbias.
template <Kind KIND>
constexpr int kPlanes = kIsCentred<KIND> ? 2 : 1;

// Where sums over columns go: to a part of S, or, if there is but one, to the gradient itself.
template <typename S, typename W>
struct ColumnSums {
  S* part;
  W* whole;

  __device__ __forceinline__ explicit operator bool() const { return part; }
  __device__ __forceinline__ ColumnSums at(int64_t column) const {
    return {part + column, whole ? whole + column : nullptr};
  }
  template <int VEC>
  __device__ __forceinline__ void store(int64_t column, const S (&sums)[VEC]) const {
    Pack<S, VEC> p;
#pragma unroll
    for (int v = 0; v < VEC; ++v) p.v[v] = sums[v];
    if constexpr (!std::is_same_v<S, W>) {
      if (whole) return fuseline::store<W, VEC>(whole + column, pack<W>(unpack<S>(p)));
    }
    fuseline::store<S, VEC>(part + column, p);
  }
};

// Rows of dy and x with one stride each; dx is contiguous, each of the partial planes is
// (blocks, n). weight may be null, weight_offset is 0 then; a null dx or plane is a gradient that
// are not requested. `whole` is where a single part goes, if its type is not the gradient's.
template <typename T, typename W, Kind KIND>
struct BwdArgs : Besides<T, KIND> {
  const T* dy;
  const T* x;
  const W* weight;
  const Stat<T>* rstd;
  T* dx;
  Stat<T>* partial[kPlanes<KIND>];
  W* whole[kPlanes<KIND>];
  int64_t rows;
  int64_t dy_stride;
  int64_t x_stride;
  int64_t n;
  Stat<T> inv_n;
  Stat<T> weight_offset;

  __device__ __forceinline__ ColumnSums<Stat<T>, W> columns(int plane, int64_t part) const {
    return ColumnSums<Stat<T>, W>{partial[plane], whole[plane]}.at(part * n);
  }
  // A centred norm has none; -0 is the one that the compiler knows to change nothing.
  __device__ __forceinline__ Stat<T> offset() const {
    if constexpr (kIsCentred<KIND>) return Stat<T>(-0.0);
    return weight_offset;
  }
  __device__ __forceinline__ Moments<Stat<T>, KIND> moments(int64_t row) const {
    if constexpr (kIsCentred<KIND>) {
      // One element is its own mean: 0 keeps the roundings of g out of dx, and NaN stays NaN.
      return {n == 1 ? Stat<T>(0) * rstd[row] : rstd[row], this->mean[row]};
    } else {
      return {rstd[row]};
    }
  }
  __host__ __device__ __forceinline__ bool wants_means() const {
    if constexpr (kIsCentred<KIND>) return dx || partial[0];
    return dx;
  }
  __device__ __forceinline__ bool wants_columns() const {
    if constexpr (kIsCentred<KIND>) return partial[0] || partial[1];
    return partial[0];
  }
};

template <typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> times(Values<S, VEC> a, const Values<S, VEC>& b) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) a.v[v] *= b.v[v];
  return a;
}
template <typename S, Kind KIND, int VEC>
__device__ __forceinline__ Values<S, VEC> normalised(Values<S, VEC> x,
                                                     const Moments<S, KIND>& row) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) x.v[v] = row.xhat(x.v[v]);
  return x;
}

// g for one pack.
template <typename S, typename W, int VEC>
__device__ __forceinline__ Values<S, VEC> weighted(Values<S, VEC> dy, const W* weight, S offset,
                                                   int64_t col) {
  return weight ? times(dy, unpack<S>(load<W, VEC>(weight + col), offset)) : dy;
}

// Sums over a row: of g * xhat and, of a centred norm, of g and xhat.
template <Kind KIND>
constexpr int kSums = kIsCentred<KIND> ? 3 : 1;
template <Kind KIND, typename S>
__device__ __forceinline__ void add(S (&sums)[kSums<KIND>], S g, S xhat) {
  sums[0] += g * xhat;
  if constexpr (kIsCentred<KIND>) sums[1] += g, sums[2] += xhat;
}

// row_sum of each, with one barrier.
template <bool MULTI_WARP, int COUNT, typename S, int WARPS>
__device__ __forceinline__ void row_sums(S (&sums)[COUNT], int row_threads,
                                         S (&scratch)[COUNT][WARPS]) {
#pragma unroll
  for (S& sum : sums) sum = lanes_sum(sum, MULTI_WARP ? kWarp : row_threads);
  if constexpr (MULTI_WARP) {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = row_threads / kWarp;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      if (lane == 0) scratch[k][warp] = sums[k];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < COUNT; ++k) {
      sums[k] = lanes_sum(lane < warps ? scratch[k][lane] : S(0), kWarp);
    }
  }
}

// What dx takes off g, made of the sums over a row divided by its length. A centred norm's xhat is
// to have its shift taken off first.
template <typename S, Kind KIND>
struct Means {
  S product = 0;

  Means() = default;
  template <typename F>
  __device__ __forceinline__ explicit Means(const F (&means)[1])
      : product(static_cast<S>(means[0])) {}
};
template <typename S>
struct Means<S, Kind::kCentred> {
  S product = 0, g = 0, shift = 0;

  Means() = default;
  template <typename F>
  __device__ __forceinline__ explicit Means(const F (&means)[3])
      : product(static_cast<S>(means[0] - means[1] * means[2])),
        g(static_cast<S>(means[1])),
        shift(static_cast<S>(means[2])) {}
};

template <Kind KIND, typename S>
__device__ __forceinline__ Means<S, KIND> means_of(S (&sums)[kSums<KIND>], S inv_n) {
#pragma unroll
  for (S& sum : sums) sum *= inv_n;
  return Means<S, KIND>(sums);
}

// Takes the shift off a centred row's xhat, of which its columns' sums are then made.
template <typename S>
__device__ __forceinline__ void add_centred(S& dweight, S& dbias, S& xhat, S dy, S shift) {
  xhat -= shift;
  dweight += dy * xhat;
  dbias += dy;
}

// dx of one element, before what is added to it.
template <typename S, Kind KIND>
__device__ __forceinline__ S gradient(S xhat, S g, S rstd, const Means<S, KIND>& means) {
  if constexpr (kIsCentred<KIND>) g -= means.g;
  return rstd * (g - xhat * means.product);
}
template <typename S, Kind KIND, int VEC>
__device__ __forceinline__ Values<S, VEC> gradient(const Values<S, VEC>& xhat, Values<S, VEC> g,
                                                   S rstd, const Means<S, KIND>& means) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) g.v[v] = gradient(xhat.v[v], g.v[v], rstd, means);
  return g;
}

// dx for one pack, with what is added to it, if anything is.
template <typename T, typename W, Kind KIND, typename S, int VEC>
__device__ __forceinline__ Pack<T, VEC> sum_with(const BwdArgs<T, W, KIND>& a, const T* added,
                                                 const Values<S, VEC>& dx) {
  if constexpr (KIND == Kind::kAdds) {
    if (a.added) return pack<T>(plus(dx, unpack<S>(load<T, VEC>(added))));
  }
  return pack<T>(dx);
}

// Tensors that have a buffer for each row or tile in shared memory: x, dy and what is added.
template <Kind KIND>
constexpr int kBuffers = KIND == Kind::kAdds ? 3 : 2;

// A weight that a thread keeps gets its offset when it is loaded, if it is of the statistics' type;
// half types stay packed and get it whenever they are unpacked.
template <typename S, typename W, int VEC>
__device__ __forceinline__ Pack<W, VEC> keep(Pack<W, VEC> weight, S offset) {
  if constexpr (std::is_same_v<W, S>) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) weight.v[v] += offset;
  }
  return weight;
}
template <typename S, typename W, int VEC>
__device__ __forceinline__ Values<S, VEC> kept(const Pack<W, VEC>& weight, S offset) {
  if constexpr (std::is_same_v<W, S>) return unpack<S>(weight);
  return unpack<S>(weight, offset);
}

}  // namespace fuseline::rms
