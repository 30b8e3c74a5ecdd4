// Vectors of the compiler's own (GCC and Clang), as wide as the instruction set this file is built
// for, and their way to memory and back, whole or in part.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace fuseline {
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

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <class C>
inline auto lane_numbers() {
  using Index = std::conditional_t<sizeof(C) == 8, int64_t, int32_t>;
  Lanes<Index, kLanes<C>> numbers;
  for (int i = 0; i < kLanes<C>; ++i) numbers[i] = i;
  return numbers;
}

// How the vector of a row that starts at column i is to be taken. Whole: as it is. Overlap: the
// last one of a row, moved back so that it ends with the row; only its last `fresh` columns are
// new. Short: the row is less than a vector; the lanes from `columns` on are zero.
struct Whole {};
struct Overlap : Whole {
  int fresh;
};
struct Short {
  int columns;
};

template <class T, int N>
inline Lanes<T, N> read(const void* p, Whole) {
  Lanes<T, N> v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <class T, int N>
inline void write(void* p, const Lanes<T, N>& v, Whole) {
  std::memcpy(p, &v, sizeof(v));
}

#if defined(__AVX512F__)

// The processor's masked loads: 0 in lanes whose memory is not touched.
template <class T, int N>
inline Lanes<T, N> read(const void* p, Short part) {
  using V = Lanes<T, N>;
  const auto lanes = static_cast<__mmask16>((1u << part.columns) - 1);
  if constexpr (sizeof(T) == 8) {
    return bit_cast<V>(_mm512_maskz_loadu_epi64(static_cast<__mmask8>(lanes), p));
  } else if constexpr (sizeof(V) == 64) {
    return bit_cast<V>(_mm512_maskz_loadu_epi32(lanes, p));
  } else if constexpr (sizeof(T) == 4) {
    return bit_cast<V>(_mm256_maskz_loadu_epi32(static_cast<__mmask8>(lanes), p));
  } else if constexpr (sizeof(V) == 32) {
    return bit_cast<V>(_mm256_maskz_loadu_epi16(lanes, p));
  } else {
    return bit_cast<V>(_mm_maskz_loadu_epi16(static_cast<__mmask8>(lanes), p));
  }
}

template <class T, int N>
inline void write(void* p, const Lanes<T, N>& v, Short part) {
  const auto lanes = static_cast<__mmask16>((1u << part.columns) - 1);
  const auto lanes8 = static_cast<__mmask8>(lanes);
  if constexpr (sizeof(T) == 8) {
    _mm512_mask_storeu_epi64(p, lanes8, bit_cast<__m512i>(v));
  } else if constexpr (sizeof(v) == 64) {
    _mm512_mask_storeu_epi32(p, lanes, bit_cast<__m512i>(v));
  } else if constexpr (sizeof(T) == 4) {
    _mm256_mask_storeu_epi32(p, lanes8, bit_cast<__m256i>(v));
  } else if constexpr (sizeof(v) == 32) {
    _mm256_mask_storeu_epi16(p, lanes, bit_cast<__m256i>(v));
  } else if constexpr (sizeof(T) == 2) {
    _mm_mask_storeu_epi16(p, lanes8, bit_cast<__m128i>(v));
  } else {
    __m128i bytes = {};
    std::memcpy(&bytes, &v, sizeof(v));
    _mm_mask_storeu_epi8(p, lanes, bytes);
  }
}

#else

template <class T, int N>
inline Lanes<T, N> read(const void* p, Short part) {
#ifdef __AVX2__
  if constexpr (N * sizeof(T) == sizeof(__m256i) && sizeof(T) >= 4) {
    const auto lanes = bit_cast<__m256i>(lane_numbers<T>() < part.columns);
    if constexpr (sizeof(T) == 8) {
      return bit_cast<Lanes<T, N>>(_mm256_maskload_epi64(static_cast<const long long*>(p), lanes));
    } else {
      return bit_cast<Lanes<T, N>>(_mm256_maskload_epi32(static_cast<const int*>(p), lanes));
    }
  }
#endif
  T lanes[N] = {};
  for (int i = 0; i < part.columns; ++i) lanes[i] = static_cast<const T*>(p)[i];
  return read<T, N>(lanes, Whole{});
}

template <class T, int N>
inline void write(void* p, const Lanes<T, N>& v, Short part) {
#ifdef __AVX2__
  if constexpr (N * sizeof(T) == sizeof(__m256i) && sizeof(T) >= 4) {
    const auto lanes = bit_cast<__m256i>(lane_numbers<T>() < part.columns);
    if constexpr (sizeof(T) == 8) {
      _mm256_maskstore_epi64(static_cast<long long*>(p), lanes, bit_cast<__m256i>(v));
    } else {
      _mm256_maskstore_epi32(static_cast<int*>(p), lanes, bit_cast<__m256i>(v));
    }
    return;
  }
#endif
  for (int i = 0; i < part.columns; ++i) static_cast<T*>(p)[i] = v[i];
}

#endif

}  // namespace
}  // namespace fuseline
