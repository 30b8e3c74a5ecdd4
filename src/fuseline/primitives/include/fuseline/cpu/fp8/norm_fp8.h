// What the CPU kernels of norms to e4m3 take, and the table of them for one instruction set. No
// torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::fp8 {

// Rows of x, or of x + residual, which is written to new_residual, to rows of y in e4m3. Strides
// are in elements. `weight` and `bias` are fp32 and may be null: 1 and 0. A row has `blocks` blocks
// of `block` elements, the last of which may be fewer, each of which has a scale, which is written;
// without blocks the one scale is read.
struct Args {
  const void* x;
  const void* residual;
  const float* weight;
  const float* bias;
  void* new_residual;
  void* y;
  float* scale;
  int64_t n, x_stride, residual_stride;
  int64_t blocks, block;
  double eps;
  float scale_ub;
};

// Takes rows [first, last).
using Rows = void (*)(const Args&, int64_t first, int64_t last);

// By element of x; none of f64.
struct Kernels {
  Rows rows[kElements];
};

}  // namespace fuseline::fp8
