// The gradient of sum and cosine for the kernels of pointwise.cuh.
#pragma once

#include "fuseline/cuda/pointwise/pointwise.cuh"
#include "fuseline/cuda/trig.cuh"

namespace fuseline::horizontal_reduction_pointwise {

// dx = dsum - dcos * sin(x), of (dcos, x) and, of the row, dsum.
template <typename T_>
struct Backward {
  using T = T_;
  using S = Stat<T>;
  using Row = T;
  static constexpr int INPUTS = 2, OF_ROWS = 1, OUTPUTS = 1, GAPS = 0;
  static constexpr int64_t ROW_BYTES[] = {sizeof(T)};
  static constexpr bool RUNS = true;

  static __device__ __forceinline__ Row row(const void* const* of_rows, const int64_t* at) {
    return static_cast<const T*>(of_rows[0])[at[0]];
  }
  template <int VEC>
  static __device__ __forceinline__ Values<S, VEC> of(const Values<S, VEC> (&in)[INPUTS],
                                                      const pointwise::RowsOf<Row>& rows) {
    const S first = to_stat(rows.first), other = to_stat(rows.other);
    Values<S, VEC> dx = cos_sin<false, true, T>(in[1]).sin;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      dx.v[v] = (v < rows.left ? first : other) - in[0].v[v] * dx.v[v];
    }
    return dx;
  }
};

}  // namespace fuseline::horizontal_reduction_pointwise
