// What the CPU row kernels of the root-mean-square norm take, and the table of them for one
// instruction set. No torch and no inline functions here: every instruction set's translation unit
// includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::rms {

// Rows of x to rows of y; those that add read residual as well and write new_residual, which is
// what they normalise. Strides are in elements. What the norm is multiplied by is weight_offset +
// weight; `weight` may be null: 1. So may `rstd`, which is written in fp32 (fp64 for fp64).
struct ForwardArgs {
  const void* x;
  const void* residual;
  const void* weight;
  void* new_residual;
  void* y;
  void* rstd;
  int64_t n;
  int64_t x_stride;
  int64_t residual_stride;
  double eps;
  double weight_offset;
};

// `weight` and `dx` may be null. Those that add write dx + added; `added` may be null as well.
struct BackwardArgs {
  const void* dy;
  const void* added;
  const void* x;
  const void* weight;
  const void* rstd;
  void* dx;
  int64_t n;
  int64_t dy_stride;
  int64_t added_stride;
  int64_t x_stride;
  double weight_offset;
};

// Both take rows [first, last). `dweight`, if not null, gets the n sums over these rows.
using ForwardRows = void (*)(const ForwardArgs&, int64_t first, int64_t last);
using BackwardRows = void (*)(const BackwardArgs&, int64_t first, int64_t last, double* dweight);

// Adds sums[chunks][n] pairwise, in place, for columns [first, last), and rounds them to dweight.
using ReduceColumns = void (*)(double* sums, int64_t chunks, int64_t n, int64_t first, int64_t last,
                               void* dweight);

// Kernels by element of x and of weight; null where the pair is not offered. No weight: x's own.
struct Kernels {
  ForwardRows forward[kElements][kElements];
  BackwardRows backward[kElements][kElements];
  ReduceColumns reduce[kElements];
};

}  // namespace fuseline::rms
