// Vectors of the compiler's own (GCC and Clang), as wide as the instruction set this file is built
// for, with loads and stores that convert to and from the four element types.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace fuseline::rms_norm {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
// GCC 12 warns of its own header where the intrinsics without a mask are used.
constexpr __mmask16 kAllLanes = 0xffff;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <class T, int N>
using Lanes = typename VectorOf<T, N>::type;

// C is the type computed in: float or double.
template <class C>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(C));
template <class C>
using Vector = Lanes<C, kLanes<C>>;

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct NoWeight {};

template <class X>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};
template <class X>
using Compute = typename ComputeOf<X>::type;

// "All lanes", as a type, so that only the end of a row pays for a count.
struct Full {};

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <int N>
inline Lanes<float, N> to_float(const Lanes<uint16_t, N>& bits, bf16) {
  return bit_cast<Lanes<float, N>>(__builtin_convertvector(bits, Lanes<uint32_t, N>) << 16);
}

template <int N>
inline Lanes<uint16_t, N> from_float(const Lanes<float, N>& v, bf16) {
  const auto u = bit_cast<Lanes<uint32_t, N>>(v);
  const auto even = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const auto nan = ((u >> 16) & 0x8000) | 0x7fc0;
  return __builtin_convertvector((u & 0x7fffffff) > 0x7f800000 ? nan : even, Lanes<uint16_t, N>);
}

template <int N>
inline Lanes<float, N> to_float(const Lanes<uint16_t, N>& bits, f16) {
#ifdef __F16C__
  if constexpr (N == 8) {
    return bit_cast<Lanes<float, 8>>(_mm256_cvtph_ps(bit_cast<__m128i>(bits)));
  }
#endif
#ifdef __AVX512F__
  if constexpr (N == 16) {
    return bit_cast<Lanes<float, 16>>(_mm512_maskz_cvtph_ps(kAllLanes, bit_cast<__m256i>(bits)));
  }
#endif
  // The exponent is rebiased by a multiplication, which gets subnormals right too.
  const auto u = __builtin_convertvector(bits, Lanes<uint32_t, N>);
  const auto magnitude = u & 0x7fff;
  const auto finite =
      bit_cast<Lanes<uint32_t, N>>(bit_cast<Lanes<float, N>>(magnitude << 13) * 0x1p112f);
  const auto special = (magnitude << 13) | 0x7f800000;
  const auto sign = (u & 0x8000) << 16;
  return bit_cast<Lanes<float, N>>((magnitude < 0x7c00 ? finite : special) | sign);
}

template <int N>
inline Lanes<uint16_t, N> from_float(const Lanes<float, N>& v, f16) {
#ifdef __F16C__
  if constexpr (N == 8) {
    return bit_cast<Lanes<uint16_t, 8>>(
        _mm256_cvtps_ph(bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
#ifdef __AVX512F__
  if constexpr (N == 16) {
    return bit_cast<Lanes<uint16_t, 16>>(
        _mm512_maskz_cvtps_ph(kAllLanes, bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
  }
#endif
  const auto u = bit_cast<Lanes<uint32_t, N>>(v);
  const auto magnitude = u & 0x7fffffff;
  const auto normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  // Added to 0.5, whose last bit is the least subnormal, the sum is rounded by the processor.
  const auto subnormal =
      bit_cast<Lanes<uint32_t, N>>(bit_cast<Lanes<float, N>>(magnitude) + 0.5f) - 0x3f000000;
  const auto large = magnitude > 0x7f800000 ? (u & 0) + 0x7e00 : (u & 0) + 0x7c00;
  const auto finite = magnitude < 0x38800000 ? subnormal : normal;
  const auto half = (magnitude < 0x47800000 ? finite : large) | ((u >> 16) & 0x8000);
  return __builtin_convertvector(half, Lanes<uint16_t, N>);
}

template <class C, class X>
inline Vector<C> load(const X* p, Full) {
  constexpr int kN = kLanes<C>;
  if constexpr (sizeof(X) == 2) {
    Lanes<uint16_t, kN> bits;
    std::memcpy(&bits, p, sizeof(bits));
    return __builtin_convertvector(to_float<kN>(bits, X{}), Vector<C>);
  } else {
    Lanes<X, kN> v;
    std::memcpy(&v, p, sizeof(v));
    return __builtin_convertvector(v, Vector<C>);
  }
}

template <class C, class X>
inline void store(X* p, const Vector<C>& v, Full) {
  constexpr int kN = kLanes<C>;
  if constexpr (sizeof(X) == 2) {
    const auto bits = from_float<kN>(__builtin_convertvector(v, Lanes<float, kN>), X{});
    std::memcpy(p, &bits, sizeof(bits));
  } else {
    const auto converted = __builtin_convertvector(v, Lanes<X, kN>);
    std::memcpy(p, &converted, sizeof(converted));
  }
}

// The first `count` lanes; the others are zero.
template <class C, class X>
inline Vector<C> load(const X* p, int64_t count) {
  X buffer[kLanes<C>] = {};
  std::memcpy(buffer, p, count * sizeof(X));
  return load<C>(buffer, Full{});
}

template <class C, class X>
inline void store(X* p, const Vector<C>& v, int64_t count) {
  X buffer[kLanes<C>];
  store<C>(buffer, v, Full{});
  std::memcpy(p, buffer, count * sizeof(X));
}

// weight[i ...], or ones, which the compiler drops.
template <class C, class W, class Count>
inline Vector<C> load_weight(const W* w, int64_t i, Count count) {
  return load<C>(w + i, count);
}
template <class C, class Count>
inline Vector<C> load_weight(const NoWeight*, int64_t, Count) {
  return Vector<C>{} + 1;
}

template <class C>
inline double sum_lanes(const Vector<C>& v) {
  double sum[kLanes<C>];
  for (int i = 0; i < kLanes<C>; ++i) sum[i] = v[i];
  for (int half = kLanes<C> / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sum[i] += sum[i + half];
  }
  return sum[0];
}

template <class C>
inline void add_lanes(double* p, const Vector<C>& v, Full) {
  for (int i = 0; i < kLanes<C>; ++i) p[i] += v[i];
}
template <class C>
inline void add_lanes(double* p, const Vector<C>& v, int64_t count) {
  for (int i = 0; i < count; ++i) p[i] += v[i];
}

}  // namespace
}  // namespace fuseline::rms_norm
