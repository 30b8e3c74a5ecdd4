// What the CPU row kernels of the softmax, its logarithm, the softmax of a softmax and their
// gradients take, and the table of them for one instruction set. No torch and no inline functions
// here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::softmax {

// Rows of x to rows of y. `stats`, what is saved beside x, may be null, or there may be none.
// Strides are in elements.
struct ForwardArgs {
  const void* x;
  void* y;
  void* stats;
  int64_t n;
  int64_t x_stride;
};

// Rows of dy to rows of dx. `saved` is y or, where there are `stats`, x.
struct GradientArgs {
  const void* dy;
  const void* saved;
  const void* stats;
  void* dx;
  int64_t n;
  int64_t dy_stride;
  int64_t saved_stride;
};

// Both take rows [first, last); by element of x.
struct Kernels {
  void (*forward[kElements])(const ForwardArgs&, int64_t first, int64_t last);
  void (*gradient[kElements])(const GradientArgs&, int64_t first, int64_t last);
};

}  // namespace fuseline::softmax
