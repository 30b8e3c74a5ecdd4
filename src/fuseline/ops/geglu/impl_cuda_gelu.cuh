// GELU as a gate on a GPU.
#pragma once

#include "fuseline/cuda/pointwise/gated.cuh"
#include "fuseline/cuda/pointwise/gelu.cuh"

namespace fuseline::geglu {

// Gradients are judged by the largest one, and half types keep no more than fp32 leaves: both do
// without an exponent in two parts.
template <gelu::Formula F>
struct Gelu {
  template <typename T>
  static __device__ __forceinline__ gated::Slope<Stat<T>> with_slope(Stat<T> a) {
    const auto [share, slope] = gelu::share_and_slope<F>(a);
    return {a * share, fma(a, slope, share)};
  }

  template <typename T>
  static __device__ __forceinline__ Stat<T> of(Stat<T> a) {
    if constexpr (sizeof(T) == 2) {
      return a * gelu::share_and_slope<F>(a).share;
    } else {
      return a * gelu::share_of<F>(gelu::Parts<Stat<T>>{a, 0});
    }
  }
};

}  // namespace fuseline::geglu
