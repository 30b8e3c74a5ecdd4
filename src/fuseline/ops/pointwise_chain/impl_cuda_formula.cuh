// The pointwise chain and its gradient for the kernels of pointwise.cuh.
#pragma once

#include "fuseline/cuda/packs.cuh"
#include "fuseline/cuda/trig.cuh"

namespace fuseline::pointwise_chain {

// max(x * cos(x), cos(x)) + x * cos(x)
template <typename T, typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> chain(const Values<S, VEC>& x) {
  Values<S, VEC> y = cos_sin<true, false, T>(x).cos;
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    const S cos = y.v[v], product = x.v[v] * cos;
    if constexpr (sizeof(T) == 2) {
      y.v[v] = fma(x.v[v], cos, fmax(product, cos));
    } else {  // the other sum would lose digits near x = -1, of which half types have enough
      y.v[v] = product > cos ? product + product : cos * (1 + x.v[v]);
    }
  }
  return y;
}

// Its derivative; where the two are equal, half of each.
template <typename T, typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> slope(const Values<S, VEC>& x) {
  const auto at = cos_sin<true, true, T>(x);
  Values<S, VEC> dx;
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    const S cos = at.cos.v[v], sin = at.sin.v[v], of_product = cos - x.v[v] * sin;
    S of_max = x.v[v] * cos > cos ? of_product : -sin;
    if (x.v[v] == 1) of_max = (of_product - sin) * S(0.5);
    dx.v[v] = of_product + of_max;
  }
  return dx;
}

// y of x or, of dy and x, dx.
template <bool BACKWARD, typename T_>
struct Chain {
  using T = T_;
  using S = Stat<T>;
  static constexpr int INPUTS = 1 + BACKWARD, OF_ROWS = 0, OUTPUTS = 1, GAPS = 0;
  static constexpr bool RUNS = true;

  template <int VEC>
  static __device__ __forceinline__ Values<S, VEC> of(const Values<S, VEC> (&in)[INPUTS]) {
    if constexpr (!BACKWARD) {
      return chain<T>(in[0]);
    } else {
      auto dx = slope<T>(in[1]);
#pragma unroll
      for (int v = 0; v < VEC; ++v) dx.v[v] *= in[0].v[v];
      return dx;
    }
  }
};

}  // namespace fuseline::pointwise_chain
