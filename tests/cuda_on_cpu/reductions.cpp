// The forward of horizontal_reduction_reduction, chosen and launched as on a GPU.
#include "emulator.h"
#include "fuseline/row_launch.cuh"
#include "ops/horizontal_reduction_reduction/impl_cuda_rows.cuh"

#define EXPORT(name, T)                                                                      \
  extern "C" void sum_and_amax_##name(const T* x, T* sums, T* amax, int64_t rows, int64_t n, \
                                      int64_t stride, int64_t backwards) {                   \
    emulator::backwards = backwards;                                                         \
    fuseline::horizontal_reduction_reduction::Forward<T, false> op{};                        \
    op.sums = sums;                                                                          \
    op.amax = amax;                                                                          \
    fuseline::rows::launch({{x}, {stride}, {}, rows, n}, op, nullptr);                       \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)
