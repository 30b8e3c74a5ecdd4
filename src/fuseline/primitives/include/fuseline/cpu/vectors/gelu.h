// What GELU multiplies its argument by, in both formulas: the share that passes, and its slope. For
// the instruction set the including file is built for; everything is in an unnamed namespace.
#pragma once

#include "fuseline/cpu/vectors/vector_math.h"

namespace fuseline::gelu {
namespace {

// A number in two parts.
template <class C>
struct Pair {
  Vector<C> high, low;
};

template <class C>
inline Pair<C> sum_of(const Vector<C>& a, const Vector<C>& b) {
  const Vector<C> high = a + b, moved = high - a;
  return {high, (a - (high - moved)) + (b - moved)};
}

// Both parts are made by one instruction, which no compiler contracts with sums of them.
template <class C>
inline Pair<C> product_of(const Vector<C>& a, const Vector<C>& b) {
  const Vector<C> high = fused<C>(a, b, Vector<C>{});
  return {high, fused<C>(a, b, -high)};
}

// e^-v.
template <class C>
inline Vector<C> exp_of_minus(const Pair<C>& v) {
  const Vector<C> e = vexp<C>(-v.high);
  return e - e * v.low;
}

template <class C>
struct Gate {
  Vector<C> share, slope;
};

// 1 / (1 + e^-u) with u = 2 * sqrt(2 / pi) * (h + 0.044715 * h^3), which is (1 + tanh(u / 2)) / 2.
struct Tanh {
  static constexpr long double kFirst = 1.595769121605730711759784239737536L;
  static constexpr long double kThird = 0.071354816272600248776348742279L;

  template <class C>
  static Vector<C> constant(long double v) {
    return Vector<C>{} + static_cast<C>(v);
  }
  // What the type has not of a constant.
  template <class C>
  static C rest(long double v) {
    return static_cast<C>(v - static_cast<C>(v));
  }

  // e^-u and u's derivative, for a >= 0. A u of 20 makes 20 of every relative error: so it has two
  // parts where the result has the digits to show it.
  template <bool kExact, class C>
  static Gate<C> exponential(const Pair<C>& a) {
    const Vector<C> first = constant<C>(kFirst), third = constant<C>(kThird);
    if constexpr (!kExact) {
      const Vector<C> cubic = third * (a.high * a.high);
      return {vexp<C>(-a.high * (first + cubic)), first + 3 * cubic};
    } else {
      const Pair<C> square = product_of<C>(a.high, a.high);
      const Pair<C> cubic = product_of<C>(third, square.high);
      const Pair<C> factor = sum_of<C>(first, cubic.high);
      const Vector<C> lost = factor.low + cubic.low + third * square.low +
                             rest<C>(kThird) * square.high + rest<C>(kFirst);
      const Pair<C> u = product_of<C>(a.high, factor.high);
      const Vector<C> derivative = factor.high + 2 * cubic.high;
      return {exp_of_minus<C>({u.high, u.low + a.high * lost + a.low * derivative}), derivative};
    }
  }

  template <bool kExact, class C>
  static Gate<C> gate(const Vector<C>& h, const Pair<C>& a) {
    const auto [e, derivative] = exponential<kExact, C>(a);
    const Vector<C> positive = 1 / (1 + e), negative = e * positive;
    return {h < 0 ? negative : positive, negative * positive * derivative};
  }
};

// The normal distribution, erfc(-h / sqrt(2)) / 2. For a >= 0 it is, at -a, e^(-a^2 / 2) / (a + 4)
// times a polynomial in t = (a - 4) / (a + 4): Chebyshev interpolation of our own, to 3e-8 (fp32)
// and 1e-16 (fp64), for all a at which the result is not 0.
struct Erf {
  template <class C>
  static Vector<C> polynomial_of(const Vector<C>& t) {
    if constexpr (sizeof(C) == 8) {
      return polynomial<C>(t, 0.7552851304157515, -0.6078966419718917, 0.38713740074221886,
                           -0.18652185795969417, 0.06039657489069947, -0.007540188965593059,
                           -0.0034796923622425332, 0.0016308184418903596, 0.00013334425401904912,
                           -0.0002310948183193762, -1.9078665316613576e-06, 3.5144181157760973e-05,
                           7.150055959216099e-07, -5.918892731763236e-06, -6.25132104047868e-07,
                           1.0198048518135172e-06, 2.6368248576407624e-07, -1.5426320536771075e-07,
                           -7.63808205349045e-08, 1.457859334703646e-08, 1.392402399350171e-08,
                           7.26954547902669e-11, -9.653425420228504e-10);
    } else {
      return polynomial<C>(t, 0.755285144f, -0.607896626f, 0.387136668f, -0.186523005f,
                           0.0604064688f, -0.00752721308f, -0.00352357398f, 0.0015693137f,
                           0.000194801847f, -0.000122983154f);
    }
  }

  template <bool kExact, class C>
  static Vector<C> exponential(const Pair<C>& a) {
    if constexpr (!kExact) return vexp<C>(a.high * a.high * C(-0.5));
    const Pair<C> square = product_of<C>(a.high, a.high);
    const Vector<C> low = square.low * C(0.5) + a.high * a.low;
    return exp_of_minus<C>({square.high * C(0.5), low});
  }

  template <bool kExact, class C>
  static Gate<C> gate(const Vector<C>& h, const Pair<C>& a) {
    const Vector<C> e = exponential<kExact, C>(a), inverse = 1 / (a.high + 4);
    const Vector<C> tail = e * (inverse * polynomial_of<C>(1 - 8 * inverse));
    return {h < 0 ? tail : 1 - tail, e * C(0.398942280401432677939946059934)};
  }
};

// The gate of a number, which has two parts where its rounding would show.
template <class F, bool kExact, class C>
inline Gate<C> gate_at(const Pair<C>& h) {
  // From here on the share is 0 or 1, and its slope 0, in any type.
  constexpr C kFar = 64;
  const Vector<C> size = h.high < 0 ? -h.high : h.high;
  const auto far = size > kFar;
  const Pair<C> a = {far ? Vector<C>{} + kFar : size,
                     far ? Vector<C>{} : (h.high < 0 ? -h.low : h.low)};
  return F::template gate<kExact, C>(h.high, a);
}

// The gate of x + bias, and x + bias.
template <class F, bool kExact, class C>
inline Gate<C> gate_of(const Vector<C>& x, const Vector<C>& bias, Vector<C>& h) {
  const Pair<C> sum = kExact ? sum_of<C>(x, bias) : Pair<C>{x + bias, Vector<C>{}};
  h = sum.high;
  return gate_at<F, kExact, C>(sum);
}

}  // namespace
}  // namespace fuseline::gelu
