// GELU on a GPU: y = h * share(h) with h = x + bias, and its slope; cpu/vectors/gelu.h derives both
// formulas. A small share is an exponential, whose argument shows what its roundings lose: so for
// fp32 and fp64 it has two parts. Exponents are in base 2, which is the hardware's.
#pragma once

#include "fuseline/cuda/packs.cuh"
#include "fuseline/cuda/pointwise/approximate.cuh"
#include "fuseline/gelu_formula.h"

namespace fuseline::gelu {

constexpr double kLn2 = 0.69314718055994530942;
// In base 2: 2 * sqrt(2 / pi) and 0.044715 of it, and 1 / 2.
constexpr double kFirst = 2.3022081981443248, kThird = 0.1029432395800235;
constexpr double kHalf = 0.7213475204444817;
constexpr double kCubic = 0.044715;
// What fp32 has not of them, and fp64.
constexpr double kFirstRest = 1.2948402350332344e-08, kHalfRest = 9.62981494545545e-09;
constexpr double kCubicRest = 1.5461444832776117e-09;
constexpr double kThirdRest64 = -5.978177400718744e-18, kFirstRest64 = 1.3132826040769712e-16;
constexpr double kHalfRest64 = 1.0177636870465517e-17;
// From here on the share is 0 or 1, and its slope 0, in any type.
constexpr double kFar = 64;

template <typename S>
struct Slope {
  S share, slope;
};
template <typename S>
struct Parts {
  S high, low;
};

template <typename S>
__device__ __forceinline__ Parts<S> sum_of(S a, S b) {
  const S high = a + b, moved = high - a;
  return {high, (a - (high - moved)) + (b - moved)};
}
// A product is one instruction that no compiler contracts with what adds it.
template <typename S>
__device__ __forceinline__ Parts<S> product_of(S a, S b) {
  const S high = fma(a, b, S(0));
  return {high, fma(a, b, -high)};
}

template <typename S, typename C, int COUNT>
__device__ __forceinline__ S polynomial(S t, const C (&coefficients)[COUNT]) {
  S p = coefficients[0];
#pragma unroll
  for (int i = 1; i < COUNT; ++i) p = fma(p, t, static_cast<S>(coefficients[i]));
  return p;
}

// The normal distribution at -a is e^(-a^2 / 2) / (a + 4) times a polynomial of (a - 4) / (a + 4).
__device__ __forceinline__ double normal_tail(double t) {
  constexpr double kLong[] = {
      -9.653425420228504e-10,  7.26954547902669e-11,   1.392402399350171e-08,
      1.457859334703646e-08,   -7.63808205349045e-08,  -1.5426320536771075e-07,
      2.6368248576407624e-07,  1.0198048518135172e-06, -6.25132104047868e-07,
      -5.918892731763236e-06,  7.150055959216099e-07,  3.5144181157760973e-05,
      -1.9078665316613576e-06, -0.0002310948183193762, 0.00013334425401904912,
      0.0016308184418903596,   -0.0034796923622425332, -0.007540188965593059,
      0.06039657489069947,     -0.18652185795969417,   0.38713740074221886,
      -0.6078966419718917,     0.7552851304157515};
  return polynomial(t, kLong);
}
__device__ __forceinline__ float normal_tail(float t) {
  constexpr float kShort[] = {-0.000122983154f, 0.000194801847f, 0.0015693137f, -0.00352357398f,
                              -0.00752721308f,  0.0604064688f,   -0.186523005f, 0.387136668f,
                              -0.607896626f,    0.755285144f};
  return polynomial(t, kShort);
}

// erfc(-h / sqrt(2)) / 2 of e = e^(-a^2 / 2), a = |h|.
template <typename S>
__device__ __forceinline__ S normal_share(S h, S a, S e) {
  const S scale = inverse(a + 4);
  const S tail = e * (scale * normal_tail(fma(S(-8), scale, S(1))));
  return h < 0 ? tail : 1 - tail;
}

// The share and its slope, in one part.
template <Formula F, typename S>
__device__ __forceinline__ Slope<S> share_and_slope(S h) {
  S a = fabs(h);
  a = a > S(kFar) ? S(kFar) : a;
  if constexpr (F == Formula::tanh) {
    const S cubic = S(kThird) * (a * a), derivative = fma(S(3), cubic, S(kFirst));
    const S e = power(-a * (S(kFirst) + cubic));
    const S positive = inverse(1 + e), negative = e * positive;
    return {h < 0 ? negative : positive, negative * positive * derivative * S(kLn2)};
  } else {
    const S e = power(S(-kHalf) * (a * a));
    return {normal_share(h, a, e), e * S(0.3989422804014327)};
  }
}

// 2^-(t.high + t.low)
template <typename S>
__device__ __forceinline__ S power_of_minus(Parts<S> t) {
  const S e = power(-t.high);
  return fma(e, t.low * S(-kLn2), e);
}

// The share of a sum in two parts.
template <Formula F>
__device__ __forceinline__ double share_of(Parts<double> h) {
  const bool far = !(fabs(h.high) < kFar);
  const double a = far && !isnan(h.high) ? kFar : fabs(h.high);
  const double a_low = far ? 0 : (h.high < 0 ? -h.low : h.low);
  if constexpr (F == Formula::tanh) {
    const Parts<double> square = product_of(a, a), cubic = product_of(kThird, square.high);
    const Parts<double> factor = sum_of(kFirst, cubic.high), t = product_of(a, factor.high);
    const double low = factor.low + fma(kThird, square.low, cubic.low) +
                       fma(kThirdRest64, square.high, kFirstRest64);
    const double derivative = fma(kThird, 2 * square.high, factor.high);
    const double e = power_of_minus<double>({t.high, fma(a_low, derivative, fma(a, low, t.low))});
    const double positive = 1 / (1 + e);
    return h.high < 0 ? e * positive : positive;
  } else {
    const Parts<double> square = product_of(a, a), t = product_of(square.high, kHalf);
    const double low = fma(2 * a, a_low, square.low);
    const double t_low = fma(low, kHalf, fma(square.high, kHalfRest64, t.low));
    return normal_share(h.high, a, power_of_minus<double>({t.high, t_low}));
  }
}

// The same of fp32, in fewer instructions: memory leaves time for some 45 an element. Ends are cut
// off so that they give 0 or 1, whatever the small parts are there.
template <Formula F>
__device__ __forceinline__ float share_of(Parts<float> h) {
  const float low = fminf(h.low, 1);  // Inf loses NaN, which is not taken over
  const float a = fminf(fmaxf(h.high, -float(kFar)), float(kFar));
  const float square = fmaf(a, a, 0.0f);
  float lost = fmaf(-a, a, square), t, t_lost;
  if constexpr (F == Formula::tanh) {
    // t = -kFirst * a * (1 + kCubic * a^2): what 1 is added to leaves all of its rounding
    const float factor = fmaf(square, float(kCubic), 1);
    float factor_low = fmaf(square, float(kCubic), 1 - factor);
    factor_low = fmaf(lost, -float(kCubic), fmaf(square, float(kCubicRest), factor_low));
    const float product = fmaf(a, factor, 0.0f);
    lost = fmaf(-a, factor_low, fmaf(-a, factor, product));
    lost = fmaf(low, fmaf(square, -3 * float(kCubic), -1), lost);
    t = fmaf(product, -float(kFirst), 0.0f);
    t_lost = fmaf(product, float(kFirstRest), fmaf(product, float(kFirst), t));
    t_lost = fmaf(lost, -float(kFirst), t_lost);
  } else {
    lost = fmaf(-2 * a, low, lost);
    t = fmaf(square, -float(kHalf), 0.0f);
    t_lost = fmaf(square, float(kHalfRest), fmaf(square, float(kHalf), t));
    t_lost = fmaf(lost, -float(kHalf), t_lost);
  }
  const float e = power(t) * fmaf(t_lost, -float(kLn2), 1);
  return F == Formula::tanh ? inverse(1 + e) : normal_share(h.high, fabsf(a), e);
}

}  // namespace fuseline::gelu
