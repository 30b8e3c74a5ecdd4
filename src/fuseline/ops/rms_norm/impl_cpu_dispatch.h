// What the CPU row kernels take, and the table of them for one instruction set.
// No torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include <cstdint>

namespace fuseline::rms_norm {

enum class Element { f64, f32, f16, bf16 };
constexpr int kElements = 4;

// Rows of x (`stride` elements apart) to rows of y. `weight` may be null; so may `rstd`, which is
// written in fp32 (fp64 for fp64).
struct ForwardArgs {
  const void* x;
  const void* weight;
  void* y;
  void* rstd;
  int64_t n;
  int64_t stride;
  double eps;
};

// `weight` and `dx` may be null.
struct BackwardArgs {
  const void* dy;
  const void* x;
  const void* weight;
  const void* rstd;
  void* dx;
  int64_t n;
  int64_t dy_stride;
  int64_t x_stride;
};

// Both take rows [first, last). `dweight`, if not null, gets the n sums over these rows.
using ForwardRows = void (*)(const ForwardArgs&, int64_t first, int64_t last);
using BackwardRows = void (*)(const BackwardArgs&, int64_t first, int64_t last, double* dweight);

// Adds sums[chunks][n] pairwise, in place, for columns [first, last), and rounds them to dweight.
using ReduceColumns = void (*)(double* sums, int64_t chunks, int64_t n, int64_t first, int64_t last,
                               void* dweight);

// Kernels by element of x and of weight; null where the pair is not offered. No weight: x's own.
struct Kernels {
  const char* isa;
  ForwardRows forward[kElements][kElements];
  BackwardRows backward[kElements][kElements];
  ReduceColumns reduce[kElements];
};

extern const Kernels kernels_default;
#ifdef __x86_64__
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
#endif

// The widest instruction set this processor has, or the one FUSELINE_CPU_ISA names.
const Kernels& kernels();

}  // namespace fuseline::rms_norm
