// The forward of layer_norm for the kernels of row_cuda.cuh, in two passes over the registers. The
// mean is a number of S and what that leaves of it: differences to a mean that is off by a rounding
// are all off the same way, and where x is near the mean nothing else is left.
#pragma once

#include "fuseline/cuda/rows/row_parameter.cuh"
#include "fuseline/cuda/rows/row_sums.cuh"

namespace fuseline::layer_norm {

using rows::ArgsOf;
using rows::Packs;

constexpr double kUp = 0x1p600, kDown = 0x1p-600;

// y = (x - mean) / sqrt(var + eps) * weight + bias; mean and rstd are written where there is a
// place. BOTH: there are a weight and a bias, of which aligned rows in registers need not be told.
template <typename T_, typename W, bool BOTH, bool HELD = true>
struct Forward : rows::DefaultTraits {
  using T = T_;
  using S = Stat<T>;
  template <int ROUND>
  using Part = std::conditional_t<ROUND == 0, ExactSum<T>, Sum<TotalOf<T, HELD>>>;
  using Anywhere = Forward<T, W, false, HELD>;
  using Again = Forward<T, W, false, false>;
  static constexpr int INPUTS = 1, OPERANDS = 2, ROUNDS = 2;
  static constexpr bool HAS_FALLBACK = true;
  struct Row {
    S mean, rest, rstd;   // mean + rest is the row's
    bool needs_fallback;  // S cannot represent the squares or rstd
  };
  const W *weight, *bias;  // null: none, if not BOTH
  double eps, inv_n;       // 1 / n: the processor takes long to divide
  S *mean_out, *rstd_out;  // null: not requested

  static __device__ S nothing() { return 0; }
  bool aligned() const {
    return (reinterpret_cast<uintptr_t>(weight) | reinterpret_cast<uintptr_t>(bias)) % 16 == 0;
  }
  Anywhere anywhere() const { return {{}, weight, bias, eps, inv_n, mean_out, rstd_out}; }
  Again again() const { return {{}, weight, bias, eps, inv_n, mean_out, rstd_out}; }
  __device__ Row begin(const ArgsOf<Forward>&, int64_t) const { return {}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Part<ROUND> sum(Row& row, Packs<Forward, VEC> (&held)[ITEMS],
                                             const There& there) const {
    if constexpr (ROUND == 0) {
      return total<ExactSum<T>, T, VEC, ITEMS>([&](int i, int v) { return held[i].v[0].v[v]; });
    } else {
      S squares[VEC] = {};  // few terms each: beside an outlier's square all others are rounded
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        // Half types are bound by instructions, so a branch for the pack; the others by latency.
        if (sizeof(T) == 2 && !there(i)) continue;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          S& x = held[i].v[0].v[v];
          x = there(i, v) ? x - row.mean : 0;
          squares[v] += x * x;
        }
      }
#pragma unroll
      for (int width = VEC / 2; width > 0; width /= 2) {
#pragma unroll
        for (int v = 0; v < width; ++v) squares[v] += squares[v + width];
      }
      return {squares[0]};
    }
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Part<ROUND>& all, int64_t n) const {
    if constexpr (ROUND == 0) {
      set_mean(row, all, n);
    } else {
      using Total = TotalOf<T, HELD>;
      const auto squares = static_cast<S>(
          fma(all.value, static_cast<Total>(inv_n), static_cast<Total>(-row.rest * row.rest)));
      // Not fmax, which drops the NaN of squares that overflow: of the sum's and of the rest's.
      const S var = (squares < 0 ? S(0) : squares) + static_cast<S>(eps);
      row.rstd = inverse_sqrt<T>(var);
      constexpr S kMost = sizeof(S) == 8 ? 1e280 : 1e36;
      row.needs_fallback = !(var * kMost >= 1 && var <= kMost);
    }
  }
  __device__ __forceinline__ void set_mean(Row& row, const Sum<double>& sum, int64_t n) const {
    row.mean = static_cast<S>(sum.value * inv_n);
    // Not the product's rest: of a mean of 1e4 that has few digits.
    row.rest = static_cast<S>(
        fma(-static_cast<double>(n), static_cast<double>(row.mean), sum.value) * inv_n);
  }
  __device__ __forceinline__ void set_mean(Row& row, const Compensated& sum, int64_t n) const {
    const double count = static_cast<double>(n), mean = sum.value / count;
    row.mean = mean;
    row.rest = (fma(-mean, count, sum.value) + sum.lost) / count;
  }
  template <typename F>
  __device__ __forceinline__ void each_parameter(const Row&, const F& f) const {
    f(weight), f(bias);
  }
  template <typename Parameter>
  struct Operands {
    Parameter weight, bias;
  };
  template <int VEC, bool EARLY>
  __device__ __forceinline__ auto operands(bool wanted, int64_t column) const {
    Operands<rows::Parameter<T, W, VEC, BOTH>> a;
    a.weight.template load<EARLY>(wanted, weight, column, rows::kNone[rows::kOnes<W>]);
    a.bias.template load<EARLY>(wanted, bias, column, rows::kNone[0]);
    return a;
  }
  template <int VEC, bool EARLY, typename Span>
  __device__ __forceinline__ auto some_operands(const Span& at, int i, int64_t first) const {
    Operands<rows::SomeParameter<T, W, VEC, EARLY>> a;
    a.weight.load_some(at, i, weight ? weight + first : nullptr, static_cast<W>(1.0f));
    a.bias.load_some(at, i, bias ? bias + first : nullptr, static_cast<W>(0.0f));
    return a;
  }
  template <int VEC, typename Some>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row, const Packs<Forward, VEC>& pack,
                                                const Some& operands) const {
    Values<S, VEC> y = pack.v[0];
    const auto w = operands.weight.values(), b = operands.bias.values();
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const S d = HELD ? y.v[v] : y.v[v] - row.mean;
      // One rounding less where results show none of it.
      const S xhat =
          sizeof(T) == 2 ? fma(d, row.rstd, -row.rest * row.rstd) : (d - row.rest) * row.rstd;
      y.v[v] = fma(xhat, w.v[v], b.v[v]);
    }
    return y;
  }
  __device__ void finish(const Row& row, int64_t index) const {
    if (mean_out) mean_out[index] = row.mean + row.rest;
    if (rstd_out) rstd_out[index] = row.rstd;
  }
  __device__ bool needs_fallback(const Row& row) const { return row.needs_fallback; }
  // Reads the row three times, all in fp64: that holds the square of every fp32; rows of fp64 are
  // first scaled by a power of two. `whole` adds up over the row.
  template <typename Whole>
  __device__ void fallback(const ArgsOf<Forward>& a, const Row&, int64_t index, int64_t first,
                           int64_t step, bool again, const Whole& whole) const {
    const auto at = [&](int64_t col) { return static_cast<double>(to_stat(a.at(0, index, col))); };
    double scale = 1;
    if constexpr (std::is_same_v<T, double>) {
      double most = 0;
#pragma unroll 1
      for (int64_t col = first; again && col < a.n; col += step) most += fabs(at(col)) * inv_n;
      // Beside such an eps squares that underflow are nothing, and eps * kUp^2 overflows.
      scale = whole(most) >= 1 ? kDown : eps > 1e-250 ? 1 : kUp;
    }
    double sum = 0, squares = 0;
#pragma unroll 1
    for (int64_t col = first; again && col < a.n; col += step) sum += at(col) * scale;
    const double mean = whole(sum) * inv_n;
#pragma unroll 1
    for (int64_t col = first; again && col < a.n; col += step) {
      const double d = at(col) * scale - mean;
      squares += d * d;
    }
    const double rstd = rsqrt(whole(squares) * inv_n + eps * scale * scale);
#pragma unroll 1
    for (int64_t col = first; again && col < a.n; col += step) {
      const double w = weight ? static_cast<double>(to_stat(weight[col])) : 1;
      const double b = bias ? static_cast<double>(to_stat(bias[col])) : 0;
      const double y = (at(col) * scale - mean) * rstd * w + b;
      a.out.of[0][index * a.n + col] = round_to<T, double>(y);
    }
    if (again && first == 0) {
      if (mean_out) mean_out[index] = static_cast<S>(mean / scale);
      if (rstd_out) rstd_out[index] = static_cast<S>(rstd * scale);
    }
  }
};

}  // namespace fuseline::layer_norm
