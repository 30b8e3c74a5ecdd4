// pointwise_chain, chosen and launched as on a GPU.
#include "elementwise.h"
#include "ops/pointwise_chain/impl_cuda_formula.cuh"

using pointwise::run;

#define EXPORT(name, T)                                                                            \
  extern "C" int64_t forward_##name(const void* x, void* to, const int64_t* sizes,                 \
                                    const int64_t* x_strides, const int64_t* to_strides,           \
                                    int64_t dims, int64_t sms, int64_t most, int64_t backwards) {  \
    using Op = fuseline::pointwise_chain::Chain<false, T>;                                         \
    return run<Op>({x}, {to}, sizes, {x_strides, to_strides}, dims, sms, most, backwards);         \
  }                                                                                                \
  extern "C" int64_t backward_##name(const void* dy, const void* x, void* to,                      \
                                     const int64_t* sizes, const int64_t* dy_strides,              \
                                     const int64_t* x_strides, const int64_t* to_strides,          \
                                     int64_t dims, int64_t sms, int64_t most, int64_t backwards) { \
    using Op = fuseline::pointwise_chain::Chain<true, T>;                                          \
    return run<Op>({dy, x}, {to}, sizes, {dy_strides, x_strides, to_strides}, dims, sms, most,     \
                   backwards);                                                                     \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)
