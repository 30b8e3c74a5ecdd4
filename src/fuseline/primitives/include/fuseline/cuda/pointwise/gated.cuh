// Gated operators, y = f(a) * b, for the kernels of pointwise.cuh.
//
// A gate is a type G: of<T>(a) -> f(a), and with_slope<T>(a) -> f(a) and its derivative, in
// Stat<T>.
#pragma once

#include "fuseline/cuda/pointwise/pointwise.cuh"

namespace fuseline::gated {

template <typename S>
struct Slope {
  S value, slope;
};

// y of a and b.
template <typename G, typename T_>
struct Forward {
  using T = T_;
  static constexpr int INPUTS = 2, OF_ROWS = 0, OUTPUTS = 1, GAPS = 0;
  static constexpr bool RUNS = true;

  template <int VEC>
  static __device__ __forceinline__ auto of(const Values<Stat<T>, VEC> (&in)[INPUTS]) {
    Values<Stat<T>, VEC> y;
#pragma unroll
    for (int v = 0; v < VEC; ++v) y.v[v] = G::template of<T>(in[0].v[v]) * in[1].v[v];
    return y;
  }
};

// da and db of a, b and dy; PACKED: these are the halves of one tensor.
template <typename G, bool PACKED, typename T_>
struct Backward {
  using T = T_;
  static constexpr int INPUTS = 3, OF_ROWS = 0, OUTPUTS = 2, GAPS = PACKED;
  static constexpr bool RUNS = !PACKED;

  template <int VEC>
  static __device__ __forceinline__ auto of(const Values<Stat<T>, VEC> (&in)[INPUTS]) {
    pointwise::Results<Stat<T>, VEC, OUTPUTS> made;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const auto gate = G::template with_slope<T>(in[0].v[v]);
      const Stat<T> dy = in[2].v[v];
      made.of[0].v[v] = dy * in[1].v[v] * gate.slope;
      made.of[1].v[v] = dy * gate.value;
    }
    return made;
  }
};

}  // namespace fuseline::gated
