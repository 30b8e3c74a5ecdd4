// The gradients of softmax_backward, for the kernels of row_cuda.cuh and column_cuda.cuh.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"

namespace fuseline::softmax_backward {

using rows::ArgsOf;
using rows::Packs;

// sum(ddx * y) and sum(dy * y).
template <typename S>
struct alignas(2 * sizeof(S)) Sums {
  static constexpr bool QUICK = true;
  S ddx, dy;
  static __device__ Sums none() { return {0, 0}; }
};
template <typename S>
__device__ __forceinline__ Sums<S> plus(const Sums<S>& a, const Sums<S>& b) {
  return {a.ddx + b.ddx, a.dy + b.dy};
}
template <typename S>
__device__ __forceinline__ Sums<S> over_lanes(const Sums<S>& p, int width, int step = 1) {
  return {lanes_sum(p.ddx, width, step), lanes_sum(p.dy, width, step)};
}

// Of (ddx, dy, y), with a and b their sums:
//   of_dy = y * (ddx - a),   of_y = ddx * (dy - b) - dy * a.
template <typename T_>
struct Bwd : rows::NoEpilogueOperands {
  using T = T_;
  using S = Stat<T>;
  using Total = Sums<S>;
  template <int>
  using Part = Total;
  using Row = Total;
  using Again = Bwd;
  static constexpr int INPUTS = 3, OUTPUTS = 2, ROUNDS = 1;

  static __device__ S nothing() { return 0; }
  Again again() const { return {}; }
  __device__ Row begin(const ArgsOf<Bwd>&, int64_t) const { return {}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row&, Packs<Bwd, VEC> (&held)[ITEMS], const There&) const {
    Total part = Total::none();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const S y = held[i].v[2].v[v];
        part = plus(part, {held[i].v[0].v[v] * y, held[i].v[1].v[v] * y});
      }
    }
    return part;
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    row = all;
  }
  template <int VEC>
  __device__ __forceinline__ rows::Outputs<S, VEC, 2> out(const Row& row,
                                                          const Packs<Bwd, VEC>& pack,
                                                          rows::NoOperands) const {
    rows::Outputs<S, VEC, 2> of;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const S ddx = pack.v[0].v[v], dy = pack.v[1].v[v], y = pack.v[2].v[v];
      of.of[0].v[v] = y * (ddx - row.ddx);
      of.of[1].v[v] = ddx * (dy - row.dy) - dy * row.ddx;
    }
    return of;
  }
  __device__ void finish(const Row&, int64_t) const {}
};

}  // namespace fuseline::softmax_backward
