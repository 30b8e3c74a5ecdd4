// What the CPU kernels of the softmax, its logarithm, the softmax of a softmax and their gradients
// take, and the table of them for one instruction set. No torch and no inline functions here: every
// instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::softmax {

// Along n elements of x: rows of neighbours, or columns of elements `step` apart with `inner` of
// them side by side. `stats`, what is saved beside x, may be null, or there may be none. Strides
// are in elements, outputs contiguous.
struct ForwardArgs {
  const void* x;
  void* y;
  void* stats;
  int64_t n, inner;
  int64_t x_stride, x_step;
};

// The same of dy to dx. `saved` is y or, where there are `stats`, x.
struct GradientArgs {
  const void* dy;
  const void* saved;
  const void* stats;
  void* dx;
  int64_t n, inner;
  int64_t dy_stride, dy_step;
  int64_t saved_stride, saved_step;
};

// Columns that a thread takes at once: each slice has inner / kColumns blocks of them, or one, the
// last of which has what is left too.
constexpr int64_t kColumns = 64;

// Rows, or blocks of columns, [first, last); by element of x.
using Forward = void (*)(const ForwardArgs&, int64_t first, int64_t last);
using Gradient = void (*)(const GradientArgs&, int64_t first, int64_t last);

struct Kernels {
  Forward rows[kElements];
  Forward columns[kElements];
  Gradient rows_gradient[kElements];
  Gradient columns_gradient[kElements];
};

}  // namespace fuseline::softmax
