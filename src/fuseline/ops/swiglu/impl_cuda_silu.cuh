// SiLU as a gate on a GPU.
#pragma once

#include "fuseline/cuda/pointwise/approximate.cuh"
#include "fuseline/cuda/pointwise/gated.cuh"

namespace fuseline::swiglu {

// e^a, of half types by the hardware's power of 2, which loses |a| ULP of fp32. Both keep the
// digits that subnormal numbers have: a times one may be as large as their results.
template <typename T>
__device__ __forceinline__ Stat<T> exponential(Stat<T> a) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) return __expf(a);
#endif
  return exp(a);
}

// a * s with s = 1 / (1 + e^-a), of e^-|a|, which never overflows; 1 - s as a share of its own,
// which has digits where s is near 1.
struct Silu {
  template <typename T>
  static __device__ __forceinline__ gated::Slope<Stat<T>> with_slope(Stat<T> a) {
    using S = Stat<T>;
    const S e = exponential<T>(-fabs(a)), large = inverse(1 + e), small = e * large;
    const S share = a < 0 ? small : large, other = a < 0 ? large : small;
    return {a * share, share * fma(a, other, S(1))};
  }

  template <typename T>
  static __device__ __forceinline__ Stat<T> of(Stat<T> a) {
    return with_slope<T>(a).value;
  }
};

}  // namespace fuseline::swiglu
