// pointwise_chain, chosen and launched as on a GPU.
#include "emulator.h"
#include "ops/pointwise_chain/impl_cuda_kernels.cuh"

namespace chain = fuseline::pointwise_chain;

#define EXPORT(name, T)                                                                          \
  extern "C" void forward_##name(const T* x, T* y, int64_t numel, int64_t backwards) {           \
    emulator::backwards = backwards;                                                             \
    chain::launch<false, T>(nullptr, x, y, numel, nullptr);                                      \
  }                                                                                              \
  extern "C" void backward_##name(const T* dy, const T* x, T* dx, int64_t numel, int64_t back) { \
    emulator::backwards = back;                                                                  \
    chain::launch<true>(dy, x, dx, numel, nullptr);                                              \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)
