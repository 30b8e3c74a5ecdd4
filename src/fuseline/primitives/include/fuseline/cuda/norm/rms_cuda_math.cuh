// Device maths of the root-mean-square norm: the mean, the root, the fallback.
#pragma once

#include <cfloat>

#include "fuseline/cuda/packs.cuh"

namespace fuseline::rms {

// sum / n, where inv_n is 1 / n rounded: one step of Newton's, which saves the slow division but
// would make NaN of Inf.
template <typename S>
__device__ __forceinline__ S mean_of(S sum, S n, S inv_n) {
  const S mean = sum * inv_n;
  const S better = fma(fma(-mean, n, sum), inv_n, mean);
  return isfinite(mean) ? better : mean;
}

// The larger of the mean square and |eps|: their sum is 0 where eps = -square.
template <typename S>
__device__ __forceinline__ S largest_of(S square, S eps) {
  return fmax(square, fabs(eps));
}

// The mean square, or |eps| where that is larger, left the range in which their sum neither
// overflows nor is too small for full precision.
__device__ __forceinline__ bool needs_fallback(float v) {
  return !(v <= FLT_MAX / 2 && v >= 1e-30f);
}
__device__ __forceinline__ bool needs_fallback(double v) {
  return !(v <= DBL_MAX / 2 && v >= 1e-290);
}

// fp64 holds the square of every fp32; an fp64 row is scaled by a power of two instead.
struct FallbackScale {
  double scale = 1.0;
  __device__ explicit FallbackScale(float) {}
  __device__ explicit FallbackScale(double largest) : scale(largest < 1.0 ? 0x1p600 : 0x1p-600) {}
  __device__ double square(double x) const { return (x * scale) * (x * scale); }
};

// What x is multiplied by, in one step where that step is a normal number: the scaled small
// elements of a row may not be.
struct ExactRstd {
  double first, second;
  __device__ ExactRstd(const FallbackScale& scaled, double scaled_mean_square, double eps)
      : first(scaled.scale),
        second(1.0 / sqrt(scaled_mean_square + (eps * scaled.scale) * scaled.scale)) {
    const double rstd = first * second;
    if (rstd >= DBL_MIN && rstd <= DBL_MAX) first = rstd, second = 1.0;
  }
  __device__ double rstd() const { return first * second; }
  __device__ double times(double x) const { return x * first * second; }
};

}  // namespace fuseline::rms
