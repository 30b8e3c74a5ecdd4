// Loads and stores of vectors that convert to and from the element types, and what is made of
// lanes.
#pragma once

#include <cstdint>
#include <type_traits>

#include "fuseline/cpu/vectors/vectors.h"

namespace fuseline {
namespace {

struct f16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};
struct e4m3 {
  uint8_t bits;
};
// Stands for the element of an input that is not there.
struct Absent {};
// The element of a weight that something is added to.
template <class W>
struct Shifted {
  W element;
};

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

// GCC 12 takes these three conversions apart, in up to 30 instructions.
template <int N>
inline Lanes<uint32_t, N> to_32_bits(const Lanes<uint16_t, N>& bits) {
#ifdef __AVX2__
  if constexpr (N == 4) {
    return bit_cast<Lanes<uint32_t, 4>>(
        _mm_cvtepu16_epi32(_mm_cvtsi64_si128(bit_cast<int64_t>(bits))));
  } else if constexpr (N == 8) {
    return bit_cast<Lanes<uint32_t, 8>>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(bits)));
  }
#endif
#ifdef __AVX512F__
  if constexpr (N == 16) {
    return bit_cast<Lanes<uint32_t, 16>>(
        _mm512_maskz_cvtepu16_epi32(kAllLanes, bit_cast<__m256i>(bits)));
  }
#endif
  return __builtin_convertvector(bits, Lanes<uint32_t, N>);
}
template <class C, class V>
inline Vector<C> in_type(const V& v) {
  if constexpr (std::is_same_v<C, double> && std::is_same_v<V, Lanes<float, kLanes<double>>>) {
#if defined(__AVX512F__)
    return bit_cast<Vector<C>>(_mm512_maskz_cvtps_pd(0xff, bit_cast<__m256>(v)));
#elif defined(__AVX2__)
    return bit_cast<Vector<C>>(_mm256_cvtps_pd(bit_cast<__m128>(v)));
#endif
  }
  return __builtin_convertvector(v, Vector<C>);
}
// Of lanes below 256.
template <int N>
inline Lanes<uint8_t, N> to_bytes(const Lanes<uint32_t, N>& v) {
#ifdef __AVX2__
  if constexpr (N == 8) {
    const auto words = _mm256_packus_epi32(bit_cast<__m256i>(v), __m256i{});
    const auto bytes = _mm256_packus_epi16(words, words);
    return bit_cast<Lanes<uint8_t, 8>>(_mm_cvtsi128_si64(
        _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1))));
  }
#endif
  return __builtin_convertvector(v, Lanes<uint8_t, N>);
}

template <int N>
inline Lanes<float, N> to_float(const Lanes<uint16_t, N>& bits, bf16) {
  return bit_cast<Lanes<float, N>>(to_32_bits<N>(bits) << 16);
}

template <int N>
inline Lanes<uint16_t, N> from_float(const Lanes<float, N>& v, bf16) {
  const auto u = bit_cast<Lanes<uint32_t, N>>(v);
  const auto even = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const auto quiet_nan = (u & 0) + 0x7fc0;
  return __builtin_convertvector(v == v ? even : quiet_nan, Lanes<uint16_t, N>);
}

template <int N>
inline Lanes<float, N> to_float(const Lanes<uint16_t, N>& bits, f16) {
#ifdef __F16C__
  if constexpr (N == 4) {
    return bit_cast<Lanes<float, 4>>(_mm_cvtph_ps(_mm_cvtsi64_si128(bit_cast<int64_t>(bits))));
  } else if constexpr (N == 8) {
    return bit_cast<Lanes<float, 8>>(_mm256_cvtph_ps(bit_cast<__m128i>(bits)));
  }
#endif
#ifdef __AVX512F__
  if constexpr (N == 16) {
    return bit_cast<Lanes<float, 16>>(_mm512_maskz_cvtph_ps(kAllLanes, bit_cast<__m256i>(bits)));
  }
#endif
  // The exponent is rebiased by a multiplication, which gets subnormals right too.
  const auto u = to_32_bits<N>(bits);
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

// What is larger than 448 is 448.
template <int N>
inline Lanes<uint8_t, N> from_float(const Lanes<float, N>& v, e4m3) {
  const auto u = bit_cast<Lanes<uint32_t, N>>(v);
  const auto magnitude = u & 0x7fffffff;
  const auto capped = magnitude > 0x43e00000 ? (u & 0) + 0x43e00000 : magnitude;
  const auto normal = (capped - 0x3c000000 + 0x7ffff + ((capped >> 20) & 1)) >> 20;
  // Added to 2^14, whose last bit is the least subnormal, the sum is rounded by the processor.
  const auto subnormal =
      bit_cast<Lanes<uint32_t, N>>(bit_cast<Lanes<float, N>>(capped) + 0x1p14f) - 0x46800000;
  const auto finite = capped < 0x3c800000 ? subnormal : normal;
  const auto bits = (magnitude > 0x7f800000 ? (u & 0) + 0x7f : finite) | ((u >> 24) & 0x80);
  return to_bytes<N>(bits);
}

template <class C, class X, class Part>
inline Vector<C> load(const X* p, Part part) {
  constexpr int kN = kLanes<C>;
  if constexpr (sizeof(X) == 2) {
    return in_type<C>(to_float<kN>(read<uint16_t, kN>(p, part), X{}));
  } else {
    return in_type<C>(read<X, kN>(p, part));
  }
}

template <class C, class X, class Part>
inline void store(X* p, const Vector<C>& v, Part part) {
  constexpr int kN = kLanes<C>;
  if constexpr (sizeof(X) <= 2) {
    using Bits = std::conditional_t<sizeof(X) == 1, uint8_t, uint16_t>;
    write<Bits, kN>(p, from_float<kN>(__builtin_convertvector(v, Lanes<float, kN>), X{}), part);
  } else {
    write<X, kN>(p, __builtin_convertvector(v, Lanes<X, kN>), part);
  }
}

// What a load sees of v once it is stored as X.
template <class X, class C>
inline Vector<C> rounded(const Vector<C>& v) {
  constexpr int kN = kLanes<C>;
  if constexpr (sizeof(X) == 2) {
    const auto bits = from_float<kN>(__builtin_convertvector(v, Lanes<float, kN>), X{});
    return in_type<C>(to_float<kN>(bits, X{}));
  } else {
    return in_type<C>(__builtin_convertvector(v, Lanes<X, kN>));
  }
}

template <class C, class X>
inline C load_scalar(const X* p) {
  return load<C>(p, Short{1})[0];
}

template <class X>
inline void store_scalar(X* p, double v) {
  store<double>(p, Vector<double>{v}, Short{1});
}

// a * b + c, rounded once.
template <class C>
inline Vector<C> fused(const Vector<C>& a, const Vector<C>& b, const Vector<C>& c) {
#if defined(__AVX512F__)
  if constexpr (sizeof(C) == 8) {
    return bit_cast<Vector<C>>(
        _mm512_fmadd_pd(bit_cast<__m512d>(a), bit_cast<__m512d>(b), bit_cast<__m512d>(c)));
  } else {
    return bit_cast<Vector<C>>(
        _mm512_fmadd_ps(bit_cast<__m512>(a), bit_cast<__m512>(b), bit_cast<__m512>(c)));
  }
#elif defined(__FMA__)
  if constexpr (sizeof(C) == 8) {
    return bit_cast<Vector<C>>(
        _mm256_fmadd_pd(bit_cast<__m256d>(a), bit_cast<__m256d>(b), bit_cast<__m256d>(c)));
  } else {
    return bit_cast<Vector<C>>(
        _mm256_fmadd_ps(bit_cast<__m256>(a), bit_cast<__m256>(b), bit_cast<__m256>(c)));
  }
#else
  if constexpr (sizeof(C) == 8) {
    Vector<C> sum;
    for (int i = 0; i < kLanes<C>; ++i) sum[i] = __builtin_fma(a[i], b[i], c[i]);
    return sum;
  } else {  // a product of fp32 is exact in fp64
    using Wide = Lanes<double, kLanes<C>>;
    return __builtin_convertvector(
        __builtin_convertvector(a, Wide) * __builtin_convertvector(b, Wide) +
            __builtin_convertvector(c, Wide),
        Vector<C>);
  }
#endif
}

// The weight from column i on, with the offset where it is Shifted, or ones, which the compiler
// drops.
template <class C, class W, class Part>
inline Vector<C> load_weight(const W* w, C, int64_t i, Part part) {
  return load<C>(w + i, part);
}
template <class C, class W, class Part>
inline Vector<C> load_weight(const Shifted<W>* w, C offset, int64_t i, Part part) {
  return load<C>(&w->element + i, part) + offset;
}
template <class C, class Part>
inline Vector<C> load_weight(const Absent*, C, int64_t, Part) {
  return Vector<C>{} + 1;
}

// v and what is to be added to it from column i on, if anything is.
template <class C, class X, class Part>
inline Vector<C> plus(const Vector<C>& v, const X* added, int64_t i, Part part) {
  if constexpr (std::is_same_v<X, Absent>) {
    return v;
  } else {
    return v + load<C>(added + i, part);
  }
}

// v with zeros where an Overlap repeats columns, and where a Short row has none.
template <class C>
inline Vector<C> fresh(const Vector<C>& v, Whole) {
  return v;
}
template <class C>
inline Vector<C> fresh(const Vector<C>& v, Short part) {
  return lane_numbers<C>() < part.columns ? v : Vector<C>{};
}
template <class C>
inline Vector<C> fresh(const Vector<C>& v, Overlap part) {
  return lane_numbers<C>() >= kLanes<C> - part.fresh ? v : Vector<C>{};
}

// The first or the second half of v's lanes. GCC 12 takes 64 bytes apart in memory.
template <class T, int N>
inline Lanes<T, N / 2> half(const Lanes<T, N>& v, int part) {
#ifdef __AVX512F__
  if constexpr (sizeof(v) == 64) {
    const auto whole = bit_cast<__m512d>(v);
    return bit_cast<Lanes<T, N / 2>>(part == 0 ? _mm512_maskz_extractf64x4_pd(0xf, whole, 0)
                                               : _mm512_maskz_extractf64x4_pd(0xf, whole, 1));
  }
#endif
  Lanes<T, N / 2> halves[2];
  std::memcpy(halves, &v, sizeof(v));
  return halves[part];
}

// The lanes of v in fp64: a vector of double, or the first and second half of one of float.
template <class C>
constexpr int kParts = static_cast<int>(sizeof(double) / sizeof(C));

template <class C>
inline Vector<double> widen(const Vector<C>& v, int part) {
  if constexpr (kParts<C> == 1) {
    return v;
  } else {
    return in_type<double>(half<C, kLanes<C>>(v, part));
  }
}

// The other way: two vectors of fp64, a half of the lanes each.
template <int N = kLanes<double>>
inline Vector<float> narrow(const Lanes<double, N>& first, const Lanes<double, N>& second) {
  const auto a = __builtin_convertvector(first, Lanes<float, N>);
  const auto b = __builtin_convertvector(second, Lanes<float, N>);
  if constexpr (N == 8) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  } else if constexpr (N == 4) {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
  } else {
    return __builtin_shufflevector(a, b, 0, 1, 2, 3);
  }
}

template <int N>
inline double sum_halves(const Lanes<double, N>& v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    return sum_halves<N / 2>(half<double, N>(v, 0) + half<double, N>(v, 1));
  }
}

template <class C>
inline double sum_lanes(const Vector<C>& v) {
  Vector<double> sum = widen<C>(v, 0);
  for (int part = 1; part < kParts<C>; ++part) sum += widen<C>(v, part);
  return sum_halves<kLanes<double>>(sum);
}

template <class C>
inline void add_to(double* p, const Vector<C>& v, Whole) {
  for (int part = 0; part < kParts<C>; ++part, p += kLanes<double>) {
    store<double>(p, load<double>(p, Whole{}) + widen<C>(v, part), Whole{});
  }
}
template <class C>
inline void add_to(double* p, const Vector<C>& v, Short part) {
  for (int i = 0; i < part.columns; ++i) p[i] += v[i];
}

}  // namespace
}  // namespace fuseline
