// The row kernels of sum and cosine on the CPU, and the table of them for each instruction set. No
// torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::horizontal_reduction_pointwise {

// Rows of x to their sums and to rows of cos. Strides are in elements.
struct ForwardArgs {
  const void* x;
  void* sum;
  void* cos;
  int64_t n;
  int64_t x_stride;
};

struct BackwardArgs {
  const void* dsum;
  const void* dcos;
  const void* x;
  void* dx;
  int64_t n;
  int64_t dcos_stride;
  int64_t x_stride;
};

// Both take rows [first, last); by element of x.
struct Kernels {
  void (*forward[kElements])(const ForwardArgs&, int64_t first, int64_t last);
  void (*backward[kElements])(const BackwardArgs&, int64_t first, int64_t last);
};

extern const Kernels kernels_default;
#ifdef __x86_64__
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

}  // namespace fuseline::horizontal_reduction_pointwise
