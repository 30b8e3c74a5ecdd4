// The row kernels of GELU on the CPU, and the table of them for each instruction set. No torch and
// no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"
#include "fuseline/gelu_formula.h"

namespace fuseline::bias_gelu {

using gelu::Formula, gelu::kFormulas;

// Rows of x to rows of y; the bias has one element a column or, in what works on `lines`, row r
// that of r % biases. Strides are in elements.
struct ForwardArgs {
  const void* x;
  const void* bias;
  void* y;
  int64_t n;
  int64_t x_stride;
  int64_t biases = 0;
};

// `dx` may be null.
struct BackwardArgs {
  const void* dy;
  const void* x;
  const void* bias;
  void* dx;
  int64_t n;
  int64_t dy_stride;
  int64_t x_stride;
  int64_t biases = 0;
};

// Rows [first, last), by formula and element of x. `dbias`, if not null, gets the n sums over these
// rows, of lines that of each; sum_chunks adds such sums of `chunks` chunks for columns [first,
// last).
struct Kernels {
  void (*forward[kFormulas][kElements])(const ForwardArgs&, int64_t first, int64_t last);
  void (*backward[kFormulas][kElements])(const BackwardArgs&, int64_t first, int64_t last,
                                         double* dbias);
  void (*forward_lines[kFormulas][kElements])(const ForwardArgs&, int64_t first, int64_t last);
  void (*backward_lines[kFormulas][kElements])(const BackwardArgs&, int64_t first, int64_t last,
                                               double* dbias);
  void (*sum_chunks[kElements])(double* sums, int64_t chunks, int64_t n, int64_t first,
                                int64_t last, void* dbias);
};

}  // namespace fuseline::bias_gelu
