// The norm chain for the kernels of row_cuda.cuh. The seventh power of a sum whose terms cancel
// would lose seven times as much as the sum, so sums are exact to more digits than x has.
#pragma once

#include <cfloat>

#include "fuseline/cuda/rows/row_cuda.cuh"
#include "fuseline/cuda/rows/row_sums.cuh"

namespace fuseline::norm_chain {

using rows::ArgsOf;
using rows::Packs;

// Whether S has v, of fp64, with all its bits.
template <typename S>
__device__ __forceinline__ bool fits(double v) {
  constexpr double kLeast = sizeof(S) == 8 ? DBL_MIN : FLT_MIN;
  constexpr double kMost = sizeof(S) == 8 ? DBL_MAX : FLT_MAX;
  return v == 0 || (fabs(v) >= kLeast && fabs(v) <= kMost);
}

__device__ __forceinline__ double sixth(double v) { return (v * v) * (v * v) * (v * v); }

// y = x * sum^7; the sum is written unless its pointer is null.
template <typename T_>
struct Forward : rows::NoEpilogueOperands {
  using T = T_;
  using S = Stat<T>;
  using Total = ExactSum<T>;
  template <int>
  using Part = Total;
  using Again = Forward;
  static constexpr int INPUTS = 1, ROUNDS = 1;
  static constexpr bool HAS_FALLBACK = true;
  struct Row {
    double sum;
    S power;
    bool needs_fallback;  // S cannot represent the power
  };
  double* sums;

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
    double sum = all.value, power = sixth(sum) * sum;
    if constexpr (std::is_same_v<Total, Compensated>) {
      if (power != 0) power += 7 * power * (all.lost / sum);
      sum = whole(all);
    }
    row = {sum, static_cast<S>(power), !fits<S>(power)};
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row, const Packs<Forward, VEC>& pack,
                                                rows::NoOperands) const {
    Values<S, VEC> y = pack.v[0];
    for (S& v : y.v) v *= row.power;
    return y;
  }
  __device__ void finish(const Row& row, int64_t index) const {
    if (sums) sums[index] = row.sum;
  }
  __device__ bool needs_fallback(const Row& row) const { return row.needs_fallback; }
  // The chain as it is written, in fp64. `whole` adds up over the row.
  template <typename Whole>
  __device__ void fallback(const ArgsOf<Forward>& a, const Row&, int64_t index, int64_t first,
                           int64_t step, bool again, const Whole& whole) const {
    double factors[3] = {1, 1, 1};
    const auto chain = [&](int64_t col) {
      return static_cast<double>(to_stat(a.at(0, index, col))) * factors[0] * factors[1] *
             factors[2];
    };
    for (double& factor : factors) {
      double sum = 0;
      for (int64_t col = first; again && col < a.n; col += step) sum += chain(col);
      factor = whole(sum);
    }
    if (isfinite(factors[0])) {  // what the sums are, also where their terms overflow
      factors[1] = factors[0] * factors[0];
      factors[2] = factors[1] * factors[1];
    }
    // Infinities of both signs: so the backward knows that all is NaN.
    const bool undefined = !isfinite(factors[0]) && isnan(factors[1]);
    if (sums && again && first == 0 && undefined) sums[index] = factors[1];
    for (int64_t col = first; again && col < a.n; col += step) {
      a.out.of[0][index * a.n + col] = round_to<T, double>(chain(col));
    }
  }
};

// dx = dy * sum^7 + 7 * sum^6 * dot, dot = sum(dy * x), of (dy, x). An infinite sum makes each x of
// the next step an infinity, which the terms of `dot` are made of then: NaN unless they agree.
template <typename T_>
struct Backward : rows::NoEpilogueOperands {
  using T = T_;
  using S = Stat<T>;
  using Total = ExactSum<T>;
  template <int>
  using Part = Total;
  using Again = Backward;
  static constexpr int INPUTS = 2, ROUNDS = 1;
  struct Row {
    double sum, dot;
    bool fits;  // S has dx = v * power + shift
    __device__ __forceinline__ double power() const { return sixth(sum) * sum; }
    __device__ __forceinline__ double shift() const { return 7 * sixth(sum) * dot; }
  };
  const double* sums;

  static __device__ S nothing() { return 0; }
  Again again() const { return *this; }
  __device__ Row begin(const ArgsOf<Backward>&, int64_t index) const { return {sums[index]}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row& row, Packs<Backward, VEC> (&held)[ITEMS],
                                       const There& there) const {
    const S factor = isfinite(row.sum) ? S(1) : static_cast<S>(fabs(row.sum));
    return total<Total, T, VEC, ITEMS>([&](int i, int v) {
      using Term = std::conditional_t<sizeof(T) == 2, float, double>;
      const S x = there(i, v) ? held[i].v[1].v[v] * factor : nothing();
      return static_cast<Term>(held[i].v[0].v[v]) * static_cast<Term>(x);
    });
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    row.dot = all.value;
    if constexpr (std::is_same_v<Total, Compensated>) row.dot = whole(all);
    row.fits = fits<S>(row.power()) && fits<S>(row.shift());
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row, const Packs<Backward, VEC>& pack,
                                                rows::NoOperands) const {
    Values<S, VEC> dx = pack.v[0];
    if (row.fits) {
      const S power = static_cast<S>(row.power()), shift = static_cast<S>(row.shift());
      for (S& v : dx.v) v = v * power + shift;
    } else {  // overflows last
      for (S& v : dx.v) v = static_cast<S>((v * row.sum + 7 * row.dot) * sixth(row.sum));
    }
    return dx;
  }
  __device__ void finish(const Row&, int64_t) const {}
};

}  // namespace fuseline::norm_chain
