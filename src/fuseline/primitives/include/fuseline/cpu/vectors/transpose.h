// Transposed copies of planes of elements, squares of them through vectors. Everything is in an
// unnamed namespace and uses no template of the standard library: what the linker merges could
// carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/vectors/vectors.h"

namespace fuseline {
namespace {

// 16 bytes, which every processor has vectors of, of the bits of T.
template <class T>
constexpr int kSide = 16 / static_cast<int>(sizeof(T));
template <class T>
using Word = std::conditional_t<sizeof(T) == 8, uint64_t,
                                std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
template <class T>
using Side = Lanes<Word<T>, kSide<T>>;

template <class T>
inline void interleave(const Side<T>& a, const Side<T>& b, Side<T>* both) {
  if constexpr (sizeof(T) == 8) {
    both[0] = __builtin_shufflevector(a, b, 0, 2);
    both[1] = __builtin_shufflevector(a, b, 1, 3);
  } else if constexpr (sizeof(T) == 4) {
    both[0] = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    both[1] = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  } else {
    both[0] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    both[1] = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
  }
}

// Puts the rows of one half between those of the other, until columns are rows, and writes them.
// Loops are unrolled lest GCC 12 keep the vectors in memory.
template <class T, int LEFT = kSide<T>>
inline void interleave_and_write(const Side<T>* rows, T* to, int64_t to_step) {
  constexpr int kN = kSide<T>;
  if constexpr (LEFT == 1) {
#pragma GCC unroll 8
    for (int c = 0; c < kN; ++c) write<Word<T>, kN>(to + c * to_step, rows[c], Whole{});
  } else {
    Side<T> mixed[kN];
#pragma GCC unroll 8
    for (int r = 0; r < kN / 2; ++r) interleave<T>(rows[r], rows[r + kN / 2], mixed + 2 * r);
    interleave_and_write<T, LEFT / 2>(mixed, to, to_step);
  }
}

// to[c][r] = from[r][c] of a square; rows are `step` elements apart.
template <class T>
inline void transpose_square(const T* from, int64_t from_step, T* to, int64_t to_step) {
  constexpr int kN = kSide<T>;
  Side<T> rows[kN];
#pragma GCC unroll 8
  for (int r = 0; r < kN; ++r) rows[r] = read<Word<T>, kN>(from + r * from_step, Whole{});
  interleave_and_write<T>(rows, to, to_step);
}

// The same of a few columns, and of a few rows.
template <class T>
inline void transpose_columns(const T* from, int64_t from_step, T* to, int64_t to_step,
                              int64_t rows, int64_t columns) {
  if (from_step == 1 && columns == 1) {
    std::memcpy(to, from, rows * sizeof(T));
    return;
  }
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) to[c * to_step + r] = from[r * from_step + c];
  }
}
template <class T>
inline void transpose_rows(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows,
                           int64_t columns) {
  if (to_step == 1 && rows == 1) {
    std::memcpy(to, from, columns * sizeof(T));
    return;
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) to[c * to_step + r] = from[r * from_step + c];
  }
}

// The same of a plane, in tiles of as many whole lines of both sides: each line is touched once.
template <class T>
void transpose(const T* from, int64_t from_step, T* to, int64_t to_step, int64_t rows,
               int64_t columns) {
  int64_t whole_rows = 0, whole_columns = 0;
  if constexpr (sizeof(T) > 1) {  // e4m3 comes in few columns alone
    constexpr int64_t kN = kSide<T>, kTile = 64 / sizeof(T);
    whole_rows = rows / kN * kN;
    whole_columns = columns / kN * kN;
    for (int64_t first = 0; first < whole_columns; first += kTile) {
      const int64_t end = first + kTile < whole_columns ? first + kTile : whole_columns;
      for (int64_t r = 0; r < whole_rows; r += kN) {
        for (int64_t c = first; c < end; c += kN) {
          transpose_square(from + r * from_step + c, from_step, to + c * to_step + r, to_step);
        }
      }
    }
  }
  transpose_columns(from + whole_columns, from_step, to + whole_columns * to_step, to_step, rows,
                    columns - whole_columns);
  transpose_rows(from + whole_rows * from_step, from_step, to + whole_rows, to_step,
                 rows - whole_rows, whole_columns);
}

}  // namespace
}  // namespace fuseline
