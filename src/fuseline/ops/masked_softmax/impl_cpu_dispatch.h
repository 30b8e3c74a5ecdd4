// What the CPU row kernels of the masked softmax take, and the table of them for one instruction
// set. No torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::masked_softmax {

// Which columns of a row causal leaves: of row i of each matrix those up to i + n - queries.
struct Causal {
  bool on;
  int64_t queries;  // rows of a matrix
};

constexpr int64_t kMostDims = 64;  // torch's own limit where it copies or iterates

// Rows of x to rows of y. The mask's leading dimensions are those of x, `dims` of them, its strides
// 0 where it is broadcast; `last` is that of its columns. Strides are in elements.
struct ForwardArgs {
  const void* x;
  const void* mask;
  void* y;
  int64_t n;
  int64_t x_stride;
  double scale;
  Causal causal;
  const int64_t* sizes;
  const int64_t* strides;
  int64_t dims, last;
};

// Rows of dy and y to rows of dx.
struct GradientArgs {
  const void* dy;
  const void* y;
  void* dx;
  int64_t n;
  int64_t dy_stride, y_stride;
  double scale;
  Causal causal;
};

// What the mask's elements are: there is none, x's, or fp32.
enum class Mask { none, as_x, fp32 };
constexpr int kMasks = 3;

// Both take rows [first, last). By the mask's elements, by `log`, and by element of x.
struct Kernels {
  void (*forward[kMasks][2][kElements])(const ForwardArgs&, int64_t first, int64_t last);
  void (*gradient[2][kElements])(const GradientArgs&, int64_t first, int64_t last);
};

}  // namespace fuseline::masked_softmax
