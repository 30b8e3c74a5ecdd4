// What the CPU kernels of softmax_backward's own gradients take, and the tables of row kernels for
// each instruction set. No torch and no inline functions here: every instruction set's translation
// unit includes it.
#pragma once

#include "fuseline/cpu/softmax_rows.h"

namespace fuseline::softmax_backward {

// Rows or columns of one tensor, as in softmax::ForwardArgs.
struct View {
  const void* data;
  int64_t stride, step;
};

// Along n elements, `inner` rows side by side; outputs contiguous.
struct BwdArgs {
  View ddx, dy, y;
  void *of_dy, *of_y;
  int64_t n, inner;
};

// Rows, or blocks of columns, [first, last).
using Bwd = void (*)(const BwdArgs&, int64_t first, int64_t last);

struct Kernels {
  softmax::Kernels fwd;
  Bwd rows[kElements];
  Bwd columns[kElements];
};

}  // namespace fuseline::softmax_backward
