// norm_chain, forward and backward, chosen and launched as on a GPU.
#include "emulator.h"
#include "fuseline/cuda/launch/row_launch.cuh"
#include "ops/norm_chain/impl_cuda_rows.cuh"

using namespace fuseline;

#define EXPORT(suffix, T)                                                                       \
  extern "C" void forward_##suffix(const void* x, void* y, void* sums, int64_t rows, int64_t n, \
                                   int backwards) {                                             \
    emulator::backwards = backwards;                                                            \
    norm_chain::Forward<T> op{};                                                                \
    op.sums = static_cast<double*>(sums);                                                       \
    rows::launch({{static_cast<const T*>(x)}, {n}, static_cast<T*>(y), rows, n}, op, nullptr);  \
  }                                                                                             \
  extern "C" void backward_##suffix(const void* dy, const void* x, const void* sums, void* dx,  \
                                    int64_t rows, int64_t n, int backwards) {                   \
    emulator::backwards = backwards;                                                            \
    norm_chain::Backward<T> op{};                                                               \
    op.sums = static_cast<const double*>(sums);                                                 \
    rows::launch({{static_cast<const T*>(dy), static_cast<const T*>(x)},                        \
                  {n, n},                                                                       \
                  static_cast<T*>(dx),                                                          \
                  rows,                                                                         \
                  n},                                                                           \
                 op, nullptr);                                                                  \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)
