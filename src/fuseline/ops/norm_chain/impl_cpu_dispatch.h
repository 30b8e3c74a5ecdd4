// The row kernels of the norm chain on the CPU, and the table of them for each instruction set. No
// torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::norm_chain {

// Rows of x to rows of y = x * sum^7; `sum` may be null. Strides are in elements.
struct ForwardArgs {
  const void* x;
  void* y;
  double* sum;
  int64_t n;
  int64_t x_stride;
};

struct BackwardArgs {
  const void* dy;
  const void* x;
  const double* sum;
  void* dx;
  int64_t n;
  int64_t dy_stride;
  int64_t x_stride;
};

// Both take rows [first, last); by element of x.
struct Kernels {
  void (*forward[kElements])(const ForwardArgs&, int64_t first, int64_t last);
  void (*backward[kElements])(const BackwardArgs&, int64_t first, int64_t last);
};

}  // namespace fuseline::norm_chain
