// The kernels of sum and cosine on the CPU, and the table of them for each instruction set. No
// torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::horizontal_reduction_pointwise {

// Along n elements of x: rows of neighbours, or columns of elements `step` apart with `inner` of
// them side by side, to their sums and to cos. Strides are in elements, outputs contiguous.
struct ForwardArgs {
  const void* x;
  void* sum;
  void* cos;
  int64_t n, inner;
  int64_t x_stride, x_step;
};

struct BackwardArgs {
  const void* dsum;
  const void* dcos;
  const void* x;
  void* dx;
  int64_t n, inner;
  int64_t dcos_stride, dcos_step;
  int64_t x_stride, x_step;
};

using Forward = void (*)(const ForwardArgs&, int64_t first, int64_t last);
using Backward = void (*)(const BackwardArgs&, int64_t first, int64_t last);

// Rows, or blocks of columns as the softmax has them, [first, last); by element of x.
struct Kernels {
  Forward rows[kElements];
  Forward columns[kElements];
  Backward rows_gradient[kElements];
  Backward columns_gradient[kElements];
};

}  // namespace fuseline::horizontal_reduction_pointwise
