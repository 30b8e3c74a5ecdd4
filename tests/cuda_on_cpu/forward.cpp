// layer_norm's forward, chosen and launched as on a GPU.
#include "emulator.h"
#include "fuseline/cuda/launch/row_launch.cuh"
#include "impl_cuda_rows.cuh"

namespace {

template <typename T>
void run(const void* x, const void* weight, const void* bias, void* y, void* mean, void* rstd,
         int64_t rows, int64_t n, double eps) {
  using S = fuseline::Stat<T>;
  fuseline::layer_norm::Forward<T, T, false> op{};
  op.weight = static_cast<const T*>(weight);
  op.bias = static_cast<const T*>(bias);
  op.eps = eps;
  op.inv_n = 1.0 / static_cast<double>(n);
  op.mean_out = static_cast<S*>(mean);
  op.rstd_out = static_cast<S*>(rstd);
  fuseline::rows::launch({{static_cast<const T*>(x)}, {n}, static_cast<T*>(y), rows, n}, op,
                         nullptr);
}

}  // namespace

#define EXPORT(name, T)                                                                          \
  extern "C" void name(const void* x, const void* weight, const void* bias, void* y, void* mean, \
                       void* rstd, int64_t rows, int64_t n, double eps, int backwards) {         \
    emulator::backwards = backwards;                                                             \
    run<T>(x, weight, bias, y, mean, rstd, rows, n, eps);                                        \
  }
EXPORT(forward_f32, float)
EXPORT(forward_f64, double)
EXPORT(forward_bf16, __nv_bfloat16)
