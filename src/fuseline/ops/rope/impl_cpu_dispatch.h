// The CPU kernels of rope, and the table of them for each instruction set. No torch and no inline
// functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::rope {

// Heads that are rotated: (batch, heads, tokens, d), whose rows are neighbours. Strides are in
// elements, of batch, head and token.
struct Heads {
  const void* x;
  void* y;
  int64_t count;
  int64_t x_strides[3], y_strides[3];
};

// The strides of tables are of batch, token and element of a pair.
struct Rotation {
  Heads of[2];
  const void *cos, *sin;
  int64_t cos_strides[3], sin_strides[3];
  int64_t tokens, pairs, d;
  bool interleaved, back;  // back: by the negative sines
};

// Tokens [first, last) of all batches.
using Kernel = void (*)(const Rotation&, int64_t first, int64_t last);

// By element, with tables of the same type and of float.
struct Kernels {
  Kernel same[kElements], single[kElements];
};

}  // namespace fuseline::rope
