// Transposition of a tile, in square blocks of the vectors' length. Everything is in an unnamed
// namespace: what the linker merges could carry wider instructions than the processor has.
#pragma once

#include <utility>

#include "fuseline/cpu/vectors/lanes.h"

namespace fuseline::bias_dropout_add {
namespace {

template <int kBytes>
using Word =
    std::conditional_t<kBytes == 8, uint64_t, std::conditional_t<kBytes == 4, uint32_t, uint16_t>>;

// Exchanges the lanes whose index has bit kStep in `a` with those that have not in `b`.
template <int kStep, class V, size_t... kLane>
inline void exchange(V& a, V& b, std::index_sequence<kLane...>) {
  constexpr int kN = sizeof...(kLane);
  const V first = a;
  a = __builtin_shufflevector(first, b,
                              static_cast<int>(kLane & kStep ? kN + kLane - kStep : kLane)...);
  b = __builtin_shufflevector(first, b,
                              static_cast<int>(kLane & kStep ? kN + kLane : kLane + kStep)...);
}

template <int kStep, class V, int kN>
__attribute__((always_inline)) inline void transpose_block(V (&v)[kN]) {
  if constexpr (kStep < kN) {
    for (int i = 0; i < kN; ++i) {
      if (!(i & kStep)) exchange<kStep>(v[i], v[i + kStep], std::make_index_sequence<kN>{});
    }
    transpose_block<2 * kStep>(v);
  }
}

// to[r * cols + c] = from[r + c * stride].
template <class T>
void transpose(const T* from, int64_t stride, T* to, int64_t rows, int64_t cols) {
  constexpr int kN = sizeof(T) == 8 ? kLanes<double> : kLanes<float>;
  using V = Lanes<Word<sizeof(T)>, kN>;
  const int64_t whole_rows = rows / kN * kN, whole_cols = cols / kN * kN;
  for (int64_t c = 0; c < whole_cols; c += kN) {
    for (int64_t r = 0; r < whole_rows; r += kN) {
      V block[kN];
      for (int i = 0; i < kN; ++i) std::memcpy(&block[i], from + r + (c + i) * stride, sizeof(V));
      transpose_block<1>(block);
      for (int i = 0; i < kN; ++i) std::memcpy(to + (r + i) * cols + c, &block[i], sizeof(V));
    }
  }
  for (int64_t c = 0; c < cols; ++c) {
    for (int64_t r = c < whole_cols ? whole_rows : 0; r < rows; ++r) {
      to[r * cols + c] = from[r + c * stride];
    }
  }
}

}  // namespace
}  // namespace fuseline::bias_dropout_add
