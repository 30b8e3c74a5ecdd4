// The row kernels of layer norm on the CPU, and the table of them for each instruction set. No
// torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::layer_norm {

// Rows of x to rows of y = (x - mean) * rstd * weight + bias. `weight` and `bias` may be null, and
// so may `mean` and `rstd` together, which are written in fp32 (fp64 for fp64). Strides are in
// elements.
struct ForwardArgs {
  const void* x;
  const void* weight;
  const void* bias;
  void* y;
  void* mean;
  void* rstd;
  int64_t n;
  int64_t x_stride;
  double eps;
};

// `weight` and `dx` may be null.
struct BackwardArgs {
  const void* dy;
  const void* x;
  const void* weight;
  const void* mean;
  const void* rstd;
  void* dx;
  int64_t n;
  int64_t dy_stride;
  int64_t x_stride;
};

// Parameters have the element of x or, of half types, fp32.
enum class Parameter { own, f32 };
constexpr int kParameters = 2;

// By element of x, then Parameter. Both take rows [first, last); `dweight` and
// `dbias`, where not null, get the n sums over these rows. `sum_chunks` is by element of its result
// (row_sums.h).
struct Kernels {
  void (*forward[kElements][kParameters])(const ForwardArgs&, int64_t first, int64_t last);
  void (*backward[kElements][kParameters])(const BackwardArgs&, int64_t first, int64_t last,
                                           double* dweight, double* dbias);
  void (*sum_chunks[kElements])(double* sums, int64_t chunks, int64_t n, int64_t first,
                                int64_t last, void* out);
};

}  // namespace fuseline::layer_norm
