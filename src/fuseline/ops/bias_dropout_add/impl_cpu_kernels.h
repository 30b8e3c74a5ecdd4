// One tile of bias_dropout_add, forward and backward, for the instruction set the including file is
// built for. Everything is in an unnamed namespace: what the linker merges could carry wider
// instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_sums.h"
#include "impl_cpu_philox.h"
#include "impl_cpu_transpose.h"

namespace fuseline::bias_dropout_add {
namespace {

template <class T>
struct Matrix {
  const T* data;
  int64_t stride;
};

// The operand with contiguous columns: as it lies, or transposed into `buffer`.
template <class T>
Matrix<T> with_contiguous_columns(const T* data, int64_t row, int64_t col, int64_t rows,
                                  int64_t cols, T* buffer) {
  if (col == 1 || cols == 1) return {data, row};
  if (row == 1) {
    transpose(data, col, buffer, rows, cols);
  } else {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) buffer[r * cols + c] = data[r * row + c * col];
    }
  }
  return {buffer, cols};
}

template <class X>
Matrix<X> operand(const Strided& s, const Tile& t, X* buffer) {
  return with_contiguous_columns(static_cast<const X*>(s.data), s.row, s.col, t.rows, t.cols,
                                 buffer);
}

// The factors of a tile; numbers are drawn for runs of consecutive positions.
template <class C>
Matrix<C> draw_tile(const Tile& t, const Dropout& dropout, C* factors, C* buffer) {
  if (t.position_row == 1 && t.position_col != 1) {
    for (int64_t c = 0; c < t.cols; ++c) {
      draw(buffer + c * t.rows, t.position + c * t.position_col, t.rows, dropout);
    }
    return with_contiguous_columns<C>(buffer, 1, t.rows, t.rows, t.cols, factors);
  }
  const int64_t run = t.position_col == 1 ? t.cols : 1;
  for (int64_t r = 0; r < t.rows; ++r) {
    for (int64_t c = 0; c < t.cols; c += run) {
      const int64_t position = t.position + r * t.position_row + c * t.position_col;
      draw(factors + r * t.cols + c, position, run, dropout);
    }
  }
  return {factors, t.cols};
}

template <class C, class X, class Part>
inline Vector<C> load_ahead(const Matrix<X>& m, int64_t row, int64_t col, Part part) {
  // Two pages: the processor's own prefetchers stop at the end of one.
  constexpr int64_t kAhead = 8192 / sizeof(X);
  const X* const p = m.data + row * m.stride + col;
  __builtin_prefetch(p + kAhead);
  return load<C>(p, part);
}

template <class X, bool kSum, bool kDrop>
void run(const Tile& t, const Dropout* dropout) {
  using C = Compute<X>;
  X buffers[kSum ? 3 : 1][kTile];
  C factors[kDrop ? 2 : 1][kDrop ? kTile : 1];
  const Matrix<X> x = operand(t.x, t, buffers[0]);
  Matrix<X> bias{}, residual{};
  Matrix<C> factor{};
  if constexpr (kSum) {
    bias = operand(t.bias, t, buffers[1]);
    residual = operand(t.residual, t, buffers[2]);
  }
  if constexpr (kDrop) factor = draw_tile(t, *dropout, factors[0], factors[1]);
  for (int64_t r = 0; r < t.rows; ++r) {
    X* const out = static_cast<X*>(t.out) + r * t.out_row;
    each_vector<C>(t.cols, [=](int64_t i, auto part) {
      Vector<C> v = load_ahead<C>(x, r, i, part);
      if constexpr (kSum) v += load_ahead<C>(bias, r, i, part);
      if constexpr (kDrop) v *= load<C>(factor.data + r * factor.stride + i, part);
      if constexpr (kSum) v += load_ahead<C>(residual, r, i, part);
      store<C>(out + i, v, part);
    });
  }
}

template <class X>
void forward(const Tile& t, const Dropout* dropout) {
  dropout ? run<X, true, true>(t, dropout) : run<X, true, false>(t, dropout);
}

template <class X>
void backward(const Tile& t, const Dropout* dropout) {
  run<X, false, true>(t, dropout);
}

constexpr Kernels kKernels = {{forward<double>, forward<float>, forward<f16>, forward<bf16>},
                              {backward<double>, backward<float>, backward<f16>, backward<bf16>}};

}  // namespace
}  // namespace fuseline::bias_dropout_add
