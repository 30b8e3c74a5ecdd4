// The forward of layer_norm for the kernels of row_cuda.cuh: the corrected two-pass algorithm
// (Chan, Golub and LeVeque, 1983). A first mean may be off by more than rows far from 0 are spread;
// what it is off by is the mean of the differences to it.
#pragma once

#include "fuseline/row_cuda.cuh"
#include "fuseline/row_sums.cuh"

namespace fuseline::layer_norm {

using rows::ArgsOf;
using rows::Packs;

// y = (x - mean) / sqrt(var + eps) * weight + bias; mean and rstd are written where there is a
// place.
template <typename T_, typename W, bool HELD = true>
struct Forward {
  using T = T_;
  using S = Stat<T>;
  using Part = Pair<S>;
  using Again = Forward<T, W, false>;
  static constexpr int INPUTS = 1, ROUNDS = 2;
  struct Row {
    S mean, off, rstd;  // mean + off is the row's
  };
  const W *weight, *bias;  // null: none
  double eps, inv_n;       // 1 / n: the processor takes long to divide
  S *mean_out, *rstd_out;  // null: not asked for

  static __device__ S nothing() { return 0; }
  Again again() const { return {weight, bias, eps, inv_n, mean_out, rstd_out}; }
  __device__ Row begin(const ArgsOf<Forward>&, int64_t) const { return {}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Part sum(Row& row, Packs<Forward, VEC> (&held)[ITEMS],
                                      const There& there) const {
    S sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (!there(i)) continue;
      for (S& x : held[i].v[0].v) {
        if constexpr (ROUND == 0) {
          sum += x;
        } else {
          const S d = x - row.mean;
          if constexpr (HELD) x = d;
          sum += d;
          squares += d * d;
        }
      }
    }
    return {sum, squares};
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Part& all, int64_t) const {
    const S n1 = static_cast<S>(inv_n), mean = all.first * n1;
    if constexpr (ROUND == 0) {
      row.mean = mean;
    } else {
      row.off = mean;
      const S var = fma(all.second, n1, -mean * mean);
      row.rstd = inverse_sqrt<T>(fmax(var, S(0)) + static_cast<S>(eps));
    }
  }
  // 8 elements of half types are 32 bytes of fp32, which no access has.
  template <int VEC>
  struct Parameter {
    static constexpr int ONE = VEC < 16 / static_cast<int>(sizeof(W)) ? VEC : 16 / sizeof(W);
    Pack<W, ONE> packs[VEC / ONE];

    __device__ __forceinline__ void load(bool wanted, const W* from) {
#pragma unroll
      for (int i = 0; i < VEC / ONE; ++i) packs[i] = load_if<W, ONE>(wanted, from + i * ONE);
    }
    __device__ __forceinline__ S operator[](int v) const {
      return static_cast<S>(to_stat(packs[v / ONE].v[v % ONE]));
    }
  };
  template <int VEC>
  struct Ahead {
    Parameter<VEC> weight, bias;
  };
  template <int VEC>
  __device__ __forceinline__ Ahead<VEC> ahead(bool wanted, int64_t column) const {
    Ahead<VEC> a;
    a.weight.load(wanted && weight, weight + column);
    a.bias.load(wanted && bias, bias + column);
    return a;
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row, const Packs<Forward, VEC>& pack,
                                                const Ahead<VEC>& ahead) const {
    Values<S, VEC> y = pack.v[0];
    for (S& v : y.v) v = ((HELD ? v : v - row.mean) - row.off) * row.rstd;
    if (weight) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) y.v[v] *= ahead.weight[v];
    }
    if (bias) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) y.v[v] += ahead.bias[v];
    }
    return y;
  }
  __device__ void finish(const Row& row, int64_t index) const {
    if (mean_out) mean_out[index] = row.mean + row.off;
    if (rstd_out) rstd_out[index] = row.rstd;
  }
};

}  // namespace fuseline::layer_norm
