// The softmax family for the kernels of row_cuda.cuh.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"
#include "fuseline/cuda/rows/row_sums.cuh"

namespace fuseline::softmax {

using rows::ArgsOf;
using rows::Packs;

// expf errs by an ulp; half types need no more than the processor's own 2^x.
template <typename T>
__device__ __forceinline__ Stat<T> exp_of(Stat<T> v) {
  if constexpr (std::is_same_v<T, double>) return exp(v);
  if constexpr (std::is_same_v<T, float>) return expf(v);
  return __expf(v);
}

// The same of what is only added up, or is a factor beside 1: below the least normal number it may
// be 0, which saves three of seven instructions.
template <typename T>
__device__ __forceinline__ Stat<T> exp_term(Stat<T> v) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * 1.4426950408889634f));
    return power;
  }
#endif
  return exp_of<T>(v);
}

template <typename S>
constexpr S kInfinity = static_cast<S>(__builtin_huge_val());

// What exponents are taken relative to: where all is -Inf, exp(-Inf) is to be 0.
template <typename S>
__device__ __forceinline__ S shift(S max) {
  return max == -kInfinity<S> ? S(0) : max;
}

// The largest of some elements, and the sum of exp(element - largest).
template <typename T, bool HELD>
struct alignas(8) MaxSum {
  static constexpr bool QUICK = false;
  Stat<T> max;
  TotalOf<T, HELD> sum;
  static __device__ MaxSum none() { return {-kInfinity<Stat<T>>, 0}; }
};

template <typename T, bool HELD>
__device__ __forceinline__ MaxSum<T, HELD> plus(const MaxSum<T, HELD>& a,
                                                const MaxSum<T, HELD>& b) {
  const Stat<T> max = fmax(a.max, b.max), at = shift(max);
  return {max, a.sum * exp_term<T>(a.max - at) + b.sum * exp_term<T>(b.max - at)};
}

template <typename T, bool HELD>
__device__ __forceinline__ MaxSum<T, HELD> over_lanes(const MaxSum<T, HELD>& p, int width,
                                                      int step = 1) {
  Stat<T> max = p.max;
  for_lanes(width, step,
            [&](int offset) { max = fmax(max, __shfl_xor_sync(kFullMask, max, offset)); });
  return {max, lanes_sum(p.sum * exp_term<T>(p.max - shift(max)), width, step)};
}

// What the operators that begin with a softmax of x have in common.
template <typename T_, bool HELD>
struct OfX : rows::NoEpilogueOperands {
  using T = T_;
  using S = Stat<T>;
  using Total = MaxSum<T, HELD>;
  template <int>
  using Part = Total;
  static constexpr int INPUTS = 1;
  static __device__ S nothing() { return -kInfinity<S>; }

  // Of the packs, relative to their own largest element; `keep` leaves the exponentials in them.
  template <typename Pack, int ITEMS>
  static __device__ __forceinline__ Total max_and_sum(Pack (&held)[ITEMS], bool keep) {
    S max = -kInfinity<S>, sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      for (const S x : held[i].v[0].v) max = fmax(max, x);
    }
    const S at = shift(max);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      for (S& x : held[i].v[0].v) {
        const S e = keep ? exp_of<T>(x - at) : exp_term<T>(x - at);
        if (keep) x = e;
        sum += e;
      }
    }
    return {max, sum};
  }
};

// y = exp(x - max) / sum. The exponentials are kept, taken relative to a thread's largest element;
// those of fp32, whose results show each rounding, are taken again relative to the row's, and
// divided as a processor divides.
template <typename T_, bool HELD = true>
struct Softmax : OfX<T_, HELD> {
  using Base = OfX<T_, HELD>;
  using typename Base::Total, typename Base::S, typename Base::T;
  using Again = Softmax<T, false>;
  static constexpr int ROUNDS = 1;
  static constexpr bool INTENSE = true, EXACT = sizeof(T) == 4, KEPT = HELD && !EXACT;
  struct Row {
    S max, scale;
    S sum;  // if EXACT
  };

  Again again() const { return {}; }
  __device__ Row begin(const ArgsOf<Softmax>&, int64_t) const { return {}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row& row, Packs<Softmax, VEC> (&held)[ITEMS],
                                       const There&) const {
    const Total part = Base::max_and_sum(held, KEPT);
    row.max = part.max;
    return part;
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    row.scale = static_cast<S>(1 / all.sum);
    if constexpr (KEPT) row.scale *= exp_of<T>(row.max - all.max);
    if constexpr (EXACT) row.sum = static_cast<S>(all.sum);
    row.max = all.max;
  }
  template <typename Pack>
  __device__ __forceinline__ auto out(const Row& row, const Pack& pack, rows::NoOperands) const {
    auto y = pack.v[0];
    for (S& v : y.v) {
      const S e = KEPT ? v : exp_of<T>(v - row.max);
      v = e * row.scale;
      if constexpr (EXACT) v = fma(fma(-v, row.sum, e), row.scale, v);
    }
    return y;
  }
  __device__ void finish(const Row&, int64_t) const {}
};

// y = x - max - log(sum).
template <typename T_, bool HELD = true>
struct LogSoftmax : OfX<T_, HELD> {
  using Base = OfX<T_, HELD>;
  using typename Base::Total, typename Base::S, typename Base::T;
  using Again = LogSoftmax<T, false>;
  static constexpr int ROUNDS = 1;
  struct Row {
    S max, log_sum;
  };

  Again again() const { return {}; }
  __device__ Row begin(const ArgsOf<LogSoftmax>&, int64_t) const { return {}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row&, Packs<LogSoftmax, VEC> (&held)[ITEMS],
                                       const There&) const {
    return Base::max_and_sum(held, false);
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    row = {all.max, log(static_cast<S>(all.sum))};
  }
  template <typename Pack>
  __device__ __forceinline__ auto out(const Row& row, const Pack& pack, rows::NoOperands) const {
    auto y = pack.v[0];
    for (S& v : y.v) v = v - row.max - row.log_sum;
    return y;
  }
  __device__ void finish(const Row&, int64_t) const {}
};

// y = softmax(p), p = softmax(x), whose largest element is exp(0) / sum. Exponentials are kept: a
// second one of each would take as long as the memory. Writes (max, scale, scale2), with p = exp(x
// - max) * scale and y = exp(p - scale) * scale2, unless null.
template <typename T_, bool HELD = true>
struct DoubleSoftmax : OfX<T_, HELD> {
  using Base = OfX<T_, HELD>;
  using typename Base::S, typename Base::T;
  using Again = DoubleSoftmax<T, false>;
  template <int ROUND>
  using Part = std::conditional_t<ROUND == 0, typename Base::Total, Sum<TotalOf<T, HELD>>>;
  static constexpr int ROUNDS = 2;
  static constexpr bool INTENSE = true;
  struct Row {
    S max, scale, scale2;
    S factor;  // exponentials that are kept to p
  };
  S* stats;

  Again again() const { return {{{}}, stats}; }
  __device__ Row begin(const ArgsOf<DoubleSoftmax>&, int64_t) const { return {}; }
  static __device__ __forceinline__ S second(const Row& row, S held) {
    const S p = HELD ? held * row.factor : exp_of<T>(held - row.max) * row.scale;
    return exp_of<T>(p - row.scale);
  }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Part<ROUND> sum(Row& row, Packs<DoubleSoftmax, VEC> (&held)[ITEMS],
                                             const There& there) const {
    if constexpr (ROUND == 0) {
      const auto part = Base::max_and_sum(held, HELD);
      row.max = part.max;
      return part;
    } else {
      // Of few terms each: of terms that are alike the roundings are, too. Other types have digits
      // left, or no registers.
      constexpr int SUMS = sizeof(T) == 4 ? 4 : 1;
      S sums[SUMS] = {};
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (!there(i)) continue;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          if (!there(i, v)) continue;
          S& x = held[i].v[0].v[v];
          const S e = second(row, x);
          if constexpr (HELD) x = e;
          sums[(i * VEC + v) % SUMS] += e;
        }
      }
      if constexpr (SUMS == 4) sums[0] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
      return {sums[0]};
    }
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Part<ROUND>& all, int64_t) const {
    if constexpr (ROUND == 0) {
      const S scale = static_cast<S>(1 / all.sum);
      row = {all.max, scale, 0, exp_of<T>(row.max - all.max) * scale};
    } else {
      row.scale2 = static_cast<S>(1 / all.value);
    }
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row,
                                                const Packs<DoubleSoftmax, VEC>& pack,
                                                rows::NoOperands) const {
    Values<S, VEC> y = pack.v[0];
    for (S& v : y.v) v = (HELD ? v : second(row, v)) * row.scale2;
    return y;
  }
  __device__ void finish(const Row& row, int64_t index) const {
    if (!stats) return;
    stats[3 * index] = row.max;
    stats[3 * index + 1] = row.scale;
    stats[3 * index + 2] = row.scale2;
  }
};

// What the backwards have in common: two inputs, plain sums.
template <typename T_, bool HELD>
struct OfTwo : rows::NoEpilogueOperands {
  using T = T_;
  using S = Stat<T>;
  using Total = Sum<TotalOf<T, HELD>>;
  template <int>
  using Part = Total;
  static constexpr int INPUTS = 2;
  static __device__ S nothing() { return 0; }
};

// dx of (dy, y), in one sum: that of Formula::term, of which Formula::dx makes it.
template <typename T_, template <typename> class Formula, bool HELD = true>
struct OneSumBwd : OfTwo<T_, HELD> {
  using Base = OfTwo<T_, HELD>;
  using typename Base::Total, typename Base::S, typename Base::T;
  using Again = OneSumBwd<T, Formula, false>;
  static constexpr int ROUNDS = 1;
  using Row = S;

  Again again() const { return {}; }
  __device__ Row begin(const ArgsOf<OneSumBwd>&, int64_t) const { return {}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row&, Packs<OneSumBwd, VEC> (&held)[ITEMS],
                                       const There&) const {
    S sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        sum += Formula<T>::term(held[i].v[0].v[v], held[i].v[1].v[v]);
      }
    }
    return {sum};
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    row = static_cast<S>(all.value);
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row, const Packs<OneSumBwd, VEC>& pack,
                                                rows::NoOperands) const {
    Values<S, VEC> dx;
#pragma unroll
    for (int v = 0; v < VEC; ++v) dx.v[v] = Formula<T>::dx(pack.v[0].v[v], pack.v[1].v[v], row);
    return dx;
  }
  __device__ void finish(const Row&, int64_t) const {}
};

template <typename T>
struct OfSoftmax {
  using S = Stat<T>;
  static __device__ __forceinline__ S term(S dy, S y) { return dy * y; }
  static __device__ __forceinline__ S dx(S dy, S y, S sum) { return y * (dy - sum); }
};

template <typename T>
struct OfLogSoftmax {
  using S = Stat<T>;
  static __device__ __forceinline__ S term(S dy, S) { return dy; }
  static __device__ __forceinline__ S dx(S dy, S y, S sum) { return dy - exp_term<T>(y) * sum; }
};

template <typename T>
using SoftmaxBwd = OneSumBwd<T, OfSoftmax>;
template <typename T>
using LogSoftmaxBwd = OneSumBwd<T, OfLogSoftmax>;

// dx = p * (dp - sum(dp * p)), where dp = y * (dy - sum(dy * y)), of (dy, x): p and y again from
// what the forward wrote.
template <typename T_, bool HELD = true>
struct DoubleSoftmaxBwd : OfTwo<T_, HELD> {
  using Base = OfTwo<T_, HELD>;
  using typename Base::Total, typename Base::S, typename Base::T;
  using Again = DoubleSoftmaxBwd<T, false>;
  static constexpr int ROUNDS = 2;
  struct Row {
    S max, scale, scale2, dot, dot2;
  };
  const S* stats;

  Again again() const { return {{{}}, stats}; }
  __device__ Row begin(const ArgsOf<DoubleSoftmaxBwd>&, int64_t index) const {
    return {stats[3 * index], stats[3 * index + 1], stats[3 * index + 2], 0, 0};
  }
  static __device__ __forceinline__ S first(const Row& row, S x) {
    return exp_of<T>(x - row.max) * row.scale;
  }
  static __device__ __forceinline__ S second(const Row& row, S p) {
    return exp_of<T>(p - row.scale) * row.scale2;
  }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row& row, Packs<DoubleSoftmaxBwd, VEC> (&held)[ITEMS],
                                       const There& there) const {
    S sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (!there(i)) continue;
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if (!there(i, v)) continue;
        S& dy = held[i].v[0].v[v];
        S& x = held[i].v[1].v[v];
        if constexpr (ROUND == 0) {
          const S p = first(row, x);
          sum += dy * second(row, p);
          if constexpr (HELD) x = p;
        } else {
          const S p = HELD ? x : first(row, x), dp = second(row, p) * (dy - row.dot);
          sum += dp * p;
          if constexpr (HELD) dy = dp;
        }
      }
    }
    return {sum};
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    (ROUND == 0 ? row.dot : row.dot2) = static_cast<S>(all.value);
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row,
                                                const Packs<DoubleSoftmaxBwd, VEC>& pack,
                                                rows::NoOperands) const {
    Values<S, VEC> dx;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const S dy = pack.v[0].v[v], x = pack.v[1].v[v];
      const S p = HELD ? x : first(row, x), dp = HELD ? dy : second(row, p) * (dy - row.dot);
      dx.v[v] = p * (dp - row.dot2);
    }
    return dx;
  }
  __device__ void finish(const Row&, int64_t) const {}
};

}  // namespace fuseline::softmax
