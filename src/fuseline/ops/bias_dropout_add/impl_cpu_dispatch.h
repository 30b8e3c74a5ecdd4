// The tile kernels of bias_dropout_add on the CPU, and the table of them for each instruction set.
// No torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::bias_dropout_add {

// No tile has more elements: what has to be transposed stays in the caches.
constexpr int64_t kTile = 16384;

// Strides are in elements.
struct Strided {
  const void* data;
  int64_t row, col;
};

// rows * cols elements; out's columns are contiguous. `position` is that of the first one in the
// tensor's logical order, with its strides, whatever the layout.
struct Tile {
  Strided x, bias, residual;
  void* out;
  int64_t out_row;
  int64_t position, position_row, position_col;
  int64_t rows, cols;
};

// An element whose 32 random bits are below the threshold is dropped, else scaled.
struct Dropout {
  uint64_t seed;
  uint32_t threshold;
  double scale;
};

// out = residual + dropout(x + bias), or out = dropout(x); by element. No dropout where it is null.
struct Kernels {
  void (*forward[kElements])(const Tile&, const Dropout*);
  void (*backward[kElements])(const Tile&, const Dropout*);
};

}  // namespace fuseline::bias_dropout_add
