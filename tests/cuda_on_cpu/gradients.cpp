// The gradients of the horizontal reductions.
#include "elementwise.h"
#include "ops/horizontal_reduction_pointwise/impl_cuda_gradient.cuh"
#include "ops/horizontal_reduction_reduction/impl_cuda_gradient.cuh"

using pointwise::run;

#define EXPORT(name, T)                                                                          \
  extern "C" int64_t sum_and_cos_##name(                                                         \
      const void* dcos, const void* x, const void* dsum, void* to, const int64_t* sizes,         \
      const int64_t* dcos_strides, const int64_t* x_strides, const int64_t* dsum_strides,        \
      const int64_t* to_strides, int64_t dims, int64_t sms, int64_t most, int64_t backwards) {   \
    using Op = fuseline::horizontal_reduction_pointwise::Backward<T>;                            \
    return run<Op>({dcos, x, dsum}, {to}, sizes,                                                 \
                   {dcos_strides, x_strides, dsum_strides, to_strides}, dims, sms, most,         \
                   backwards);                                                                   \
  }                                                                                              \
  extern "C" int64_t sum_and_amax_##name(                                                        \
      const void* x, const void* dsum, const void* damax, const void* amax, const void* count,   \
      void* to, const int64_t* sizes, const int64_t* x_strides, const int64_t* dsum_strides,     \
      const int64_t* damax_strides, const int64_t* amax_strides, const int64_t* count_strides,   \
      const int64_t* to_strides, int64_t dims, int64_t sms, int64_t most, int64_t backwards) {   \
    using Op = fuseline::horizontal_reduction_reduction::Backward<T>;                            \
    return run<Op>(                                                                              \
        {x, dsum, damax, amax, count}, {to}, sizes,                                              \
        {x_strides, dsum_strides, damax_strides, amax_strides, count_strides, to_strides}, dims, \
        sms, most, backwards);                                                                   \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(f16, __half)
EXPORT(bf16, __nv_bfloat16)
