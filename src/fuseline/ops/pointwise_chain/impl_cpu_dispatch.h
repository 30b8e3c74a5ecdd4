// The kernels of the pointwise chain on the CPU, and the table of them for each instruction set. No
// torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::pointwise_chain {

// Elements [first, last) of tensors without gaps that lie alike; by element of x.
struct Kernels {
  void (*forward[kElements])(const void* x, void* y, int64_t first, int64_t last);
  void (*backward[kElements])(const void* dy, const void* x, void* dx, int64_t first, int64_t last);
};

}  // namespace fuseline::pointwise_chain
