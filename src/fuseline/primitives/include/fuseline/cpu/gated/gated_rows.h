// What the CPU kernels of gated operators, y = f(a) * b, take, and the table of them for one
// instruction set. No torch and no inline functions here: every instruction set's translation unit
// includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::gated {

// Rows of n neighbours: of a and b, then of dy, to y or to da and db. Strides are in elements; the
// results have one.
struct Rows {
  const void* in[3];
  void* out[2];
  int64_t strides[3], out_stride;
};

// Columns [first, last) of rows [row, end).
struct Part {
  int64_t row, end, first, last;
};

using Kernel = void (*)(const Rows&, const Part&);

// By element.
struct Kernels {
  Kernel forward[kElements], backward[kElements];
};

}  // namespace fuseline::gated
