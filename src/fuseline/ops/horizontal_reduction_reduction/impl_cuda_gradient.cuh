// The gradient of sum and largest element for the kernels of pointwise.cuh.
#pragma once

#include "fuseline/cuda/pointwise/pointwise.cuh"

namespace fuseline::horizontal_reduction_reduction {

// dx = dsum and, where x is the largest of the `count` that are, its share of damax; NaN in a row
// with a NaN, of which nothing is the largest. Of x and, of the row, (dsum, damax, amax, count).
template <typename T_>
struct Backward {
  using T = T_;
  using S = Stat<T>;
  // What dx is where x is `amax`, and elsewhere.
  struct Row {
    S amax, most, least;
  };
  static constexpr int INPUTS = 1, OF_ROWS = 4, OUTPUTS = 1, GAPS = 0;
  static constexpr int64_t ROW_BYTES[] = {sizeof(T), sizeof(T), sizeof(T), sizeof(double)};
  static constexpr bool RUNS = true;

  static __device__ __forceinline__ Row row(const void* const* of_rows, const int64_t* at) {
    const auto element = [&](int k) { return to_stat(static_cast<const T*>(of_rows[k])[at[k]]); };
    const S sum = element(0), share = element(1), amax = element(2);
    const auto count = static_cast<S>(static_cast<const double*>(of_rows[3])[at[3]]);
    return {amax, sum + share / count, count == 0 ? amax : sum};
  }
  template <int VEC>
  static __device__ __forceinline__ Values<S, VEC> of(const Values<S, VEC> (&in)[INPUTS],
                                                      const pointwise::RowsOf<Row>& rows) {
    Values<S, VEC> dx;
    const auto set = [&](int v, const Row& own) {
      dx.v[v] = in[0].v[v] == own.amax ? own.most : own.least;
    };
    if (rows.left == VEC) {  // the most, and a third of the instructions
#pragma unroll
      for (int v = 0; v < VEC; ++v) set(v, rows.first);
    } else {
#pragma unroll
      for (int v = 0; v < VEC; ++v) v < rows.left ? set(v, rows.first) : set(v, rows.other);
    }
    return dx;
  }
};

}  // namespace fuseline::horizontal_reduction_reduction
