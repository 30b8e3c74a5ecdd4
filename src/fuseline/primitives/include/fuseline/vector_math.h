// Elementary functions on the vectors of lanes.h, with no call of a mathematical library.
// Multiplied and added terms become one FMA where the instruction set has it. The polynomials are
// those of SLEEF (Shibata and Petrogalli, https://sleef.org; Boost licence).
#pragma once

#include "fuseline/lanes.h"

namespace fuseline {
namespace {

template <class C>
using Bits = Lanes<std::conditional_t<sizeof(C) == 8, uint64_t, uint32_t>, kLanes<C>>;

template <class C>
constexpr int kMantissaBits = sizeof(C) == 8 ? 52 : 23;
template <class C>
constexpr int kExponentBias = sizeof(C) == 8 ? 1023 : 127;
// Added to a number of less than 2^(kMantissaBits - 2), it leaves the nearest integer in the last
// bits.
template <class C>
constexpr C kToInteger = sizeof(C) == 8 ? C(0x1.8p52) : C(0x1.8p23);

template <class C>
inline Vector<C> polynomial(const Vector<C>&, C constant) {
  return Vector<C>{} + constant;
}
// constant + x * (next + x * (...)).
template <class C, class... More>
inline Vector<C> polynomial(const Vector<C>& x, C constant, More... next) {
  return constant + x * polynomial<C>(x, static_cast<C>(next)...);
}

// v * 2^n, rounded once where the result is subnormal. `shifted` is n + kToInteger, and n no
// further from zero than twice the largest exponent.
template <class C>
inline Vector<C> scale_by_power_of_2(const Vector<C>& v, const Vector<C>& shifted) {
#ifdef __AVX512F__
  const Vector<C> n = shifted - kToInteger<C>;
  if constexpr (sizeof(C) == 8) {
    return bit_cast<Vector<C>>(
        _mm512_maskz_scalef_pd(0xff, bit_cast<__m512d>(v), bit_cast<__m512d>(n)));
  } else {
    return bit_cast<Vector<C>>(
        _mm512_maskz_scalef_ps(kAllLanes, bit_cast<__m512>(v), bit_cast<__m512>(n)));
  }
#else
  // Two factors: one alone may be no normal number although the result is.
  const auto integer = bit_cast<Bits<C>>(shifted) - bit_cast<Bits<C>>(Vector<C>{} + kToInteger<C>);
  const auto both = integer + 2 * kExponentBias<C>;
  const auto first = both >> 1;
  return v * bit_cast<Vector<C>>(first << kMantissaBits<C>) *
         bit_cast<Vector<C>>((both - first) << kMantissaBits<C>);
#endif
}

// e^x, within 1 ULP (fp32) and 1.5 (fp64), subnormal results included.
template <class C>
inline Vector<C> vexp(const Vector<C>& v) {
  // Beyond these the result is Inf or 0 whatever the argument; a NaN stays.
  constexpr C kLeast = sizeof(C) == 8 ? C(-746) : C(-104), kMost = sizeof(C) == 8 ? C(710) : C(89);
  const Vector<C> x = smaller<C>(Vector<C>{} + kMost, larger<C>(Vector<C>{} + kLeast, v));
  constexpr C kLog2E = C(1.442695040888963407359924681001892137);
  const Vector<C> shifted = x * kLog2E + kToInteger<C>;
  const Vector<C> n = shifted - kToInteger<C>;
  // x - n * log(2), in two steps of which the first is exact; |r| <= log(2) / 2.
  Vector<C> r, rest;
  if constexpr (sizeof(C) == 8) {
    r = x - n * 0.69314718055966295651160180568695068359375;
    r = r - n * 0.28235290563031577122588448175013436025525412068e-12;
    rest = polynomial<C>(r, 0.5, 0.166666666666666851703837, 0.0416666666666665047591422,
                         0.00833333333331652721664984, 0.00138888888889774492207962,
                         0.000198412698960509205564975, 2.4801587159235472998791e-5,
                         2.75572362911928827629423e-6, 2.75573911234900471893338e-7,
                         2.51112930892876518610661e-8, 2.08860621107283687536341e-9);
  } else {
    r = x - n * 0.693145751953125f;
    r = r - n * 1.428606765330187045e-06f;
    rest = polynomial<C>(r, 0.5f, 0.166666671633720397949219f, 0.0416664853692054748535156f,
                         0.00833336077630519866943359f, 0.00139304355252534151077271f,
                         0.000198527617612853646278381f);
  }
  return scale_by_power_of_2<C>(1 + (r + r * r * rest), shifted);
}

// log(x) of fp64 x >= 1, within 1 ULP; a NaN stays. The polynomial is fdlibm's (Sun Microsystems,
// https://www.netlib.org/fdlibm).
inline Vector<double> vlog(const Vector<double>& v) {
  using U = Bits<double>;
  const U root = bit_cast<U>(Vector<double>{} + 0.70710678118654752440);
  const U power = bit_cast<U>(Vector<double>{} + 0x1p52);
  const U exponent = (bit_cast<U>(v) - root) >> kMantissaBits<double>;
  const auto n = bit_cast<Vector<double>>(exponent | power) - 0x1p52;
  // v = (1 + f) * 2^n, 1 + f between the roots of 1/2 and 2.
  const auto f = bit_cast<Vector<double>>(bit_cast<U>(v) - (exponent << kMantissaBits<double>)) - 1;
  const auto s = f / (2 + f), square = s * s, half_square = 0.5 * f * f;
  const auto rest = square * polynomial<double>(square, 6.666666666666735130e-01,
                                                3.999999999940941908e-01, 2.857142874366239149e-01,
                                                2.222219843214978396e-01, 1.818357216161805012e-01,
                                                1.531383769920937332e-01, 1.479819860511658591e-01);
  // n * log(2) in two steps, the first exact.
  const auto low = s * (half_square + rest) + n * 1.90821492927058770002e-10;
  const auto log = n * 6.93147180369123816490e-01 - ((half_square - low) - f);
  return v == v ? log : v;
}

}  // namespace
}  // namespace fuseline
