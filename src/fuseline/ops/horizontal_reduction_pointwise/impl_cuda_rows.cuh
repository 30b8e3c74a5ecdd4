// Sum and cosine for the kernels of row_cuda.cuh.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"
#include "fuseline/cuda/rows/row_sums.cuh"
#include "fuseline/cuda/trig.cuh"

namespace fuseline::horizontal_reduction_pointwise {

using rows::ArgsOf;
using rows::Packs;

// cos(x); the sum is written where a row ends.
template <typename T_>
struct Forward : rows::NoEpilogueOperands {
  using T = T_;
  using S = Stat<T>;
  using Total = ExactSum<T>;
  template <int>
  using Part = Total;
  using Again = Forward;
  using Row = double;
  static constexpr int INPUTS = 1, ROUNDS = 1;
  static constexpr bool INTENSE = true, APART = true;
  T* sums;

  static __device__ S nothing() { return 0; }
  Again again() const { return *this; }
  __device__ Row begin(const ArgsOf<Forward>&, int64_t) const { return {}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row&, Packs<Forward, VEC> (&held)[ITEMS],
                                       const There&) const {
    return total<Total, T, VEC, ITEMS>([&](int i, int v) { return held[i].v[0].v[v]; });
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    row = whole(all);
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row&, const Packs<Forward, VEC>& pack,
                                                rows::NoOperands) const {
    return cos_sin<true, false, T>(pack.v[0]).cos;
  }
  __device__ void finish(const Row& row, int64_t index) const {
    sums[index] = round_to<T>(static_cast<S>(row));
  }
};

}  // namespace fuseline::horizontal_reduction_pointwise
