// Elementary functions on the vectors of lanes.h, with no call of a mathematical library.
// Multiplied and added terms become one FMA where the instruction set has it. The polynomials are
// those of SLEEF (Shibata and Petrogalli, https://sleef.org; Boost licence).
#pragma once

#include "fuseline/cpu/vectors/lanes.h"

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

// The larger and the smaller of two; `b` where one of them is a NaN. GCC 12 finds the instruction
// for narrower vectors only.
template <class C>
inline Vector<C> larger(const Vector<C>& a, const Vector<C>& b) {
#ifdef __AVX512F__
  if constexpr (sizeof(C) == 8) {
    return bit_cast<Vector<C>>(
        _mm512_maskz_max_pd(0xff, bit_cast<__m512d>(a), bit_cast<__m512d>(b)));
  } else {
    return bit_cast<Vector<C>>(
        _mm512_maskz_max_ps(kAllLanes, bit_cast<__m512>(a), bit_cast<__m512>(b)));
  }
#else
  return a > b ? a : b;
#endif
}
template <class C>
inline Vector<C> smaller(const Vector<C>& a, const Vector<C>& b) {
#ifdef __AVX512F__
  if constexpr (sizeof(C) == 8) {
    return bit_cast<Vector<C>>(
        _mm512_maskz_min_pd(0xff, bit_cast<__m512d>(a), bit_cast<__m512d>(b)));
  } else {
    return bit_cast<Vector<C>>(
        _mm512_maskz_min_ps(kAllLanes, bit_cast<__m512>(a), bit_cast<__m512>(b)));
  }
#else
  return a < b ? a : b;
#endif
}

// v * 2^n, rounded once where the result is subnormal; 0 where x is `least` or less, as a product
// that underflows takes processors a hundred cycles. `shifted` is n + kToInteger, and n no further
// from zero than twice the largest exponent.
template <class C>
inline Vector<C> scale_by_power_of_2(const Vector<C>& v, const Vector<C>& shifted,
                                     const Vector<C>& x, C least) {
#ifdef __AVX512F__
  const Vector<C> n = shifted - kToInteger<C>;
  if constexpr (sizeof(C) == 8) {
    const auto lanes = _mm512_cmp_pd_mask(bit_cast<__m512d>(x), _mm512_set1_pd(least), _CMP_NLE_UQ);
    return bit_cast<Vector<C>>(
        _mm512_maskz_scalef_pd(lanes, bit_cast<__m512d>(v), bit_cast<__m512d>(n)));
  } else {
    const auto lanes = _mm512_cmp_ps_mask(bit_cast<__m512>(x), _mm512_set1_ps(least), _CMP_NLE_UQ);
    return bit_cast<Vector<C>>(
        _mm512_maskz_scalef_ps(lanes, bit_cast<__m512>(v), bit_cast<__m512>(n)));
  }
#else
  // Two factors: one alone may be no normal number although the result is.
  const auto integer = bit_cast<Bits<C>>(shifted) - bit_cast<Bits<C>>(Vector<C>{} + kToInteger<C>);
  const auto both = integer + 2 * kExponentBias<C>;
  const auto first = both >> 1;
  const auto lanes = bit_cast<Bits<C>>(x <= least);
  return v * bit_cast<Vector<C>>(first << kMantissaBits<C>) *
         bit_cast<Vector<C>>((both - first) << kMantissaBits<C> & ~lanes);
#endif
}

// e^x, within 1 ULP (fp32) and 1.5 (fp64), subnormal results included. The polynomials are SLEEF's
// (Shibata and Petrogalli, https://sleef.org). Always inlined: a file with many uses of it would
// call it, and a softmax take a sixth longer.
template <class C>
__attribute__((always_inline)) inline Vector<C> vexp(const Vector<C>& v) {
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
  return scale_by_power_of_2<C>(1 + (r + r * r * rest), shifted, v, kLeast);
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

// An angle in two parts: high + low.
template <class C>
struct Angle {
  Vector<C> high, low;
};

// pi / 2 in parts.
template <class C>
constexpr C kHalfPi[] = {0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110};
template <>
constexpr float kHalfPi<float>[] = {0x1.921fb6p+0f, -0x1.777a5cp-25f, -0x1.ee59dap-50f};

// v - n * pi / 2 for |n| < 2^17, what the subtractions lose included: an fp64 may be as close to a
// multiple as 2^-60, an fp32 as 2^-27. Not kExact: of numbers that were half types, no closer than
// 2^-17, to 2^-33.
template <class C, bool kExact>
inline Angle<C> less_half_pis(const Vector<C>& v, const Vector<C>& n) {
  const Vector<C> part = Vector<C>{} + kHalfPi<C>[1];
  const Vector<C> first = fused<C>(-n, Vector<C>{} + kHalfPi<C>[0], v);  // exact
  if constexpr (!kExact) return {fused<C>(-n, part, first), Vector<C>{}};
  // Made by the same instruction, which no compiler contracts with the sums.
  const Vector<C> product = fused<C>(n, part, Vector<C>{});
  const Vector<C> high = first - product;
  const Vector<C> lost = ((first - high) - product) - fused<C>(n, part, -product);
  return {high, fused<C>(-n, Vector<C>{} + kHalfPi<C>[2], lost)};
}

template <class C>
struct SinCos {
  Vector<C> sin, cos;
};

// Whether any lane of a comparison's result is true.
template <class Mask>
inline bool any(const Mask& mask) {
#if defined(__AVX512F__)
  const auto bits = bit_cast<__m512i>(mask);
  return _mm512_test_epi32_mask(bits, bits) != 0;
#elif defined(__AVX2__)
  const auto bits = bit_cast<__m256i>(mask);
  return !_mm256_testz_si256(bits, bits);
#else
  const auto bits = bit_cast<Lanes<uint64_t, 2>>(mask);
  return (bits[0] | bits[1]) != 0;
#endif
}

// The polynomials are fdlibm's (fp64, Sun Microsystems) and those of Cephes (fp32, Moshier), for
// angles up to pi / 4, of one part if not kExact.
template <class C, bool kExact>
inline SinCos<C> polynomials(const Angle<C>& r) {
  const Vector<C> square = r.high * r.high;
  Vector<C> sin, cos;
  if constexpr (sizeof(C) == 8) {
    sin = polynomial<C>(square, -1.66666666666666324348e-01, 8.33333333332248946124e-03,
                        -1.98412698298579493134e-04, 2.75573137070700676789e-06,
                        -2.50507602534068634195e-08, 1.58969099521155010221e-10);
    cos = polynomial<C>(square, 4.16666666666666019037e-02, -1.38888888888741095749e-03,
                        2.48015872894767294178e-05, -2.75573143513906633035e-07,
                        2.08757232129817482790e-09, -1.13596475577881948265e-11);
  } else {
    sin = polynomial<C>(square, -1.6666654611e-1f, 8.3321608736e-3f, -1.9515295891e-4f);
    cos =
        polynomial<C>(square, 4.166664568298827e-2f, -1.388731625493765e-3f, 2.443315711809948e-5f);
  }
  if constexpr (!kExact) {
    return {r.high + r.high * square * sin, 1 - (square * C(0.5) - square * square * cos)};
  }
  return {r.high + (r.high * square * sin + r.low),
          1 - (square * C(0.5) - (square * square * cos - r.high * r.low))};
}

// sin(v) and cos(v) for |v| <= kLargeAngle.
template <class C, bool kExact>
inline SinCos<C> sincos_of_ordinary(const Vector<C>& v) {
  constexpr C kTwoOverPi = C(0.636619772367581343075535053490057448);
  const Vector<C> shifted = v * kTwoOverPi + kToInteger<C>;
  const auto angle = less_half_pis<C, kExact>(v, shifted - kToInteger<C>);
  const SinCos<C> first = polynomials<C, kExact>(angle);
  // Each quarter turn takes (sin, cos) to (cos, -sin).
  const auto quarters = bit_cast<Bits<C>>(shifted);
  const auto odd = (quarters & 1) != 0;
  constexpr int kToSign = static_cast<int>(sizeof(C)) * 8 - 2;
  const auto sin = bit_cast<Bits<C>>(odd ? first.cos : first.sin);
  const auto cos = bit_cast<Bits<C>>(odd ? first.sin : first.cos);
  return {bit_cast<Vector<C>>(sin ^ ((quarters & 2) << kToSign)),
          bit_cast<Vector<C>>(cos ^ (((quarters + 1) & 2) << kToSign))};
}

constexpr double kLargeAngle = 1e5;

template <class C>
inline auto is_ordinary(const Vector<C>& v) {
  return (v <= C(kLargeAngle)) & (v >= C(-kLargeAngle));
}

// The same where lanes are larger, Inf or NaN: those one after the other, with the library's.
template <class C>
__attribute__((noinline)) SinCos<C> sincos_of_any(Vector<C> v) {
  SinCos<C> result = sincos_of_ordinary<C, true>(is_ordinary<C>(v) ? v : Vector<C>{});
  for (int i = 0; i < kLanes<C>; ++i) {
    if (is_ordinary<C>(v)[i]) continue;
    if constexpr (sizeof(C) == 8) {
      result.sin[i] = __builtin_sin(v[i]);
      result.cos[i] = __builtin_cos(v[i]);
    } else {
      result.sin[i] = __builtin_sinf(v[i]);
      result.cos[i] = __builtin_cosf(v[i]);
    }
  }
  return result;
}

// sin(v) and cos(v), within 1 ULP (fp32) and 1.5 (fp64) for all finite v; sin(-0) is 0. What a lane
// gets does not depend on the others. Not kExact: as results of half types need them.
template <class C, bool kExact = true>
inline SinCos<C> vsincos(const Vector<C>& v) {
  if (__builtin_expect(any(~is_ordinary<C>(v)), 0)) return sincos_of_any<C>(v);
  return sincos_of_ordinary<C, kExact>(v);
}

template <class C, bool kExact = true>
inline Vector<C> vsin(const Vector<C>& v) {
  return vsincos<C, kExact>(v).sin;
}

template <class C, bool kExact = true>
inline Vector<C> vcos(const Vector<C>& v) {
  return vsincos<C, kExact>(v).cos;
}

}  // namespace
}  // namespace fuseline
