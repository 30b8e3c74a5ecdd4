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
  struct Row {
    T dsum, damax, amax;
    double count;
  };
  static constexpr int INPUTS = 1, OF_ROWS = 4;
  static constexpr int64_t ROW_BYTES[] = {sizeof(T), sizeof(T), sizeof(T), sizeof(double)};
  static constexpr bool RUNS = true;

  // What dx is where x is the largest, and elsewhere.
  struct Shares {
    S amax, most, least;
    __device__ __forceinline__ explicit Shares(const Row& row) : amax(to_stat(row.amax)) {
      const S sum = to_stat(row.dsum), count = static_cast<S>(row.count);
      most = sum + to_stat(row.damax) / count;
      least = count == 0 ? amax : sum;
    }
  };

  static __device__ __forceinline__ Row row(const void* const* of_rows, const int64_t* at) {
    const auto element = [&](int k) { return static_cast<const T*>(of_rows[k])[at[k]]; };
    return {element(0), element(1), element(2), static_cast<const double*>(of_rows[3])[at[3]]};
  }
  template <int VEC>
  static __device__ __forceinline__ Values<S, VEC> of(const Values<S, VEC> (&in)[INPUTS],
                                                      const pointwise::RowsOf<Row>& rows) {
    const Shares first(rows.first), other = rows.left < VEC ? Shares(rows.other) : first;
    Values<S, VEC> dx;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const Shares& own = v < rows.left ? first : other;
      dx.v[v] = in[0].v[v] == own.amax ? own.most : own.least;
    }
    return dx;
  }
};

}  // namespace fuseline::horizontal_reduction_reduction
