// The forward of the root-mean-square norm for the kernels of row_cuda.cuh.
#pragma once

#include "fuseline/cuda/norm/rms_cuda_e4m3.cuh"
#include "fuseline/cuda/norm/rms_cuda_math.cuh"
#include "fuseline/cuda/rows/row_parameter.cuh"
#include "fuseline/cuda/rows/row_sums.cuh"

namespace fuseline::rms {

using rows::ArgsOf;
using rows::Packs;

// y = h * rstd * (weight_offset + weight), where rstd = 1 / sqrt(mean(h^2) + eps). h is x or, if
// ADDS, x + residual as it is rounded to new_residual, the second output. In e4m3 (Y) y is divided
// by a scale before it is rounded. rstd is written where there is a place.
template <typename T_, typename W, bool ADDS, typename Y_ = T_, bool HELD = true>
struct Forward : rows::DefaultTraits {
  using T = T_;
  using Y = Y_;
  using S = Stat<T>;
  using Total = TotalOf<T, HELD>;
  template <int>
  using Part = Sum<Total>;
  using Again = Forward<T, W, ADDS, Y, false>;
  static constexpr int INPUTS = ADDS ? 2 : 1, OUTPUTS = INPUTS, OPERANDS = 1, ROUNDS = 1;
  static constexpr bool HAS_FALLBACK = true;
  struct Row {
    S rstd, largest;  // of the mean square and |eps|
    typename DivisorOf<Y>::Scale scale;
    DivisorOf<Y> divide;  // made late: it waits for the scale
  };
  const W* weight;  // null: none
  S* rstd_out;      // null: not requested
  const float* scale;
  double eps;
  S weight_offset;  // 0 without a weight
  S inv_n;          // 1 / n: the processor takes long to divide

  static __device__ S nothing() { return 0; }
  bool aligned() const { return reinterpret_cast<uintptr_t>(weight) % 16 == 0; }
  Again again() const { return {{}, weight, rstd_out, scale, eps, weight_offset, inv_n}; }
  __device__ Row begin(const ArgsOf<Forward>&, int64_t) const {
    Row row{};
    if constexpr (std::is_same_v<Y, e4m3>) row.scale = *scale;
    return row;
  }
  // What is normalised; HELD packs have it since it was summed.
  template <int VEC>
  static __device__ __forceinline__ Values<S, VEC> sum_of_inputs(const Packs<Forward, VEC>& in) {
    if constexpr (!ADDS) return in.v[0];
    if constexpr (ADDS) return unpack<S>(pack<T>(plus(in.v[0], in.v[1])));
  }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Part<ROUND> sum(Row&, Packs<Forward, VEC> (&held)[ITEMS],
                                             const There&) const {
    S sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const auto h = sum_of_inputs(held[i]);
      if constexpr (ADDS && HELD) held[i].v[0] = h;
      S sums[2] = {0, 0};  // two chains of half the length
#pragma unroll
      for (int v = 0; v < VEC; ++v) sums[v % 2] += h.v[v] * h.v[v];
      sum += sums[0] + sums[1];
    }
    return {sum};
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Part<ROUND>& all, int64_t n) const {
    Total square;
    if constexpr (HELD) {
      square = mean_of(all.value, static_cast<S>(n), inv_n);
    } else {
      square = all.value / static_cast<double>(n);
    }
    const Total e = static_cast<Total>(eps);
    row.divide = DivisorOf<Y>(row.scale);
    row.largest = static_cast<S>(largest_of(square, e));
    row.rstd = inverse_sqrt<T>(static_cast<S>(square + e));
  }
  template <typename F>
  __device__ __forceinline__ void each_parameter(const Row&, const F& f) const {
    f(weight);
  }
  template <int VEC, bool EARLY>
  __device__ __forceinline__ auto operands(bool wanted, int64_t column) const {
    rows::Parameter<T, W, VEC> w;
    w.template load<EARLY>(wanted, weight, column, rows::kNone[rows::kOnes<W>]);
    return w;
  }
  template <int VEC, bool EARLY, typename Span>
  __device__ __forceinline__ auto some_operands(const Span& at, int i, int64_t first) const {
    rows::SomeParameter<T, W, VEC, EARLY> w;
    w.load_some(at, i, weight ? weight + first : nullptr, static_cast<W>(1.0f));
    return w;
  }
  template <int VEC, typename Weight>
  __device__ __forceinline__ auto out(const Row& row, const Packs<Forward, VEC>& pack,
                                      const Weight& weights) const {
    const auto h = HELD ? pack.v[0] : sum_of_inputs(pack);
    Values<S, VEC> y = weights.values();
#pragma unroll
    for (int v = 0; v < VEC; ++v) y.v[v] = row.divide(h.v[v] * row.rstd * (y.v[v] + weight_offset));
    if constexpr (ADDS) return rows::Outputs<S, VEC, 2>{{y, h}};
    if constexpr (!ADDS) return y;
  }
  __device__ void finish(const Row& row, int64_t index) const {
    if (rstd_out) rstd_out[index] = row.rstd;
  }
  __device__ bool needs_fallback(const Row& row) const { return rms::needs_fallback(row.largest); }
  // Reads the row twice, all in fp64. `whole` adds up over the row.
  template <typename Whole>
  __device__ void fallback(const ArgsOf<Forward>& a, const Row& row, int64_t index, int64_t first,
                           int64_t step, bool again, const Whole& whole) const {
    const auto at = [&](int64_t col) {
      Packs<Forward, 1> pack;
#pragma unroll
      for (int k = 0; k < INPUTS; ++k) {
        pack.v[k].v[0] = to_stat(a.at(k, index, col));
      }
      return sum_of_inputs(pack).v[0];
    };
    const FallbackScale scaled(row.largest);
    double squares = 0;
#pragma unroll 1
    for (int64_t col = first; again && col < a.n; col += step) squares += scaled.square(at(col));
    const ExactRstd exact(scaled, whole(squares) / static_cast<double>(a.n), eps);
#pragma unroll 1
    for (int64_t col = first; again && col < a.n; col += step) {
      const S h = at(col), w = weight ? static_cast<S>(to_stat(weight[col])) + weight_offset : S(1);
      a.out.of[0][index * a.n + col] = round_to<Y>(row.divide(exact.times(h) * w));
      if constexpr (ADDS) a.out.of[1][index * a.n + col] = round_to<T>(h);
    }
    if (again && first == 0 && rstd_out) rstd_out[index] = static_cast<S>(exact.rstd());
  }
};

}  // namespace fuseline::rms
