// The row kernels of sum and largest element on the CPU, and the table of them for each instruction
// set. No torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::horizontal_reduction_reduction {

// Rows of x to their sums and largest elements; `count`, how many elements are equal to the
// largest, may be null. Strides are in elements.
struct ForwardArgs {
  const void* x;
  void* sum;
  void* amax;
  double* count;
  int64_t n;
  int64_t x_stride;
};

struct BackwardArgs {
  const void* dsum;
  const void* damax;
  const void* x;
  const void* amax;
  const double* count;
  void* dx;
  int64_t n;
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

}  // namespace fuseline::horizontal_reduction_reduction
