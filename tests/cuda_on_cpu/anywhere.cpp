// Operators of row_cuda.cuh on rows that begin anywhere, chosen and launched as on a GPU, and with
// all that they are given and write. One library: each of their kernels takes seconds to compile.
#include "by_kernel.h"
#include "fuseline/cuda/norm/rms_cuda_launch_fwd.cuh"
#include "fuseline/cuda/norm/rms_cuda_rows.cuh"
#include "fuseline/cuda/rows/softmax_cuda.cuh"
#include "impl_cuda_rows.cuh"
#include "ops/norm_chain/impl_cuda_rows.cuh"

namespace {

using namespace fuseline;

template <typename Op, typename T>
rows::ArgsOf<Op> arguments(const T* in, const T* other, T* out, int64_t rows, int64_t n,
                           int64_t stride) {
  rows::ArgsOf<Op> a{};
  const T* const inputs[] = {in, other};
  for (int k = 0; k < Op::INPUTS; ++k) a.in[k] = inputs[k], a.stride[k] = k ? n : stride;
  a.out.of[0] = out;
  a.rows = rows, a.n = n;
  return a;
}

template <typename How, typename Op, typename T>
void run(const Op& op, const T* in, const T* other, T* out, int64_t rows, int64_t n, int64_t stride,
         int64_t backwards) {
  emulator::backwards = backwards;
  How::launch(arguments<Op>(in, other, out, rows, n, stride), op);
}

template <typename T>
void run_layer_norm(const void* x, const void* weight, const void* bias, void* y, void* mean,
                    void* rstd, int64_t rows, int64_t n, double eps) {
  using S = Stat<T>;
  layer_norm::Forward<T, T, false> op{};
  op.weight = static_cast<const T*>(weight);
  op.bias = static_cast<const T*>(bias);
  op.eps = eps;
  op.inv_n = 1.0 / static_cast<double>(n);
  op.mean_out = static_cast<S*>(mean);
  op.rstd_out = static_cast<S*>(rstd);
  rows::launch({{static_cast<const T*>(x)}, {n}, static_cast<T*>(y), rows, n}, op, nullptr);
}

}  // namespace

#define EXPORT(how, kind, name, T, ...)                                                       \
  extern "C" void kind##_##name(const T* in, const T* other, T* out, int64_t rows, int64_t n, \
                                int64_t stride, int64_t backwards) {                          \
    run<how>(__VA_ARGS__, in, other, out, rows, n, stride, backwards);                        \
  }
#define LAYER_NORM(T) \
  (layer_norm::Forward<T, T, false>{{}, other, nullptr, 1e-5, 1.0 / n, nullptr, nullptr})
#define RMS_NORM(T) \
  (rms::Forward<T, T, false>{{}, other, nullptr, nullptr, 1e-5, 0, static_cast<Stat<T>>(1.0 / n)})
#define EXPORT_BY(how, prefix, name, T)                                 \
  EXPORT(how, prefix##softmax, name, T, (softmax::Softmax<T>{}))        \
  EXPORT(how, prefix##softmax_bwd, name, T, (softmax::SoftmaxBwd<T>{})) \
  EXPORT(how, prefix##norm_chain, name, T, (norm_chain::Forward<T>{}))  \
  EXPORT(how, prefix##layer_norm, name, T, LAYER_NORM(T))               \
  EXPORT(how, prefix##rms_norm, name, T, RMS_NORM(T))
#define EXPORT_ALL(name, T)                                       \
  EXPORT_BY(Usual, , name, T)                                     \
  EXPORT_BY(InSteps, steps_, name, T)                             \
  EXPORT_BY(ByCluster, cluster_, name, T)                         \
  EXPORT_BY(ByLong, long_, name, T)                               \
  EXPORT(Usual, log_softmax, name, T, (softmax::LogSoftmax<T>{})) \
  EXPORT(Usual, double_softmax, name, T, (softmax::DoubleSoftmax<T>{}))
EXPORT_ALL(f32, float)
EXPORT_ALL(f64, double)
EXPORT_ALL(bf16, __nv_bfloat16)
EXPORT_BY(ByTiny, tiny_, f32, float)
EXPORT_BY(ByTiny, tiny_, bf16, __nv_bfloat16)

#define EXPORT_LAYER_NORM(name, T)                                                               \
  extern "C" void name(const void* x, const void* weight, const void* bias, void* y, void* mean, \
                       void* rstd, int64_t rows, int64_t n, double eps, int backwards) {         \
    emulator::backwards = backwards;                                                             \
    run_layer_norm<T>(x, weight, bias, y, mean, rstd, rows, n, eps);                             \
  }
EXPORT_LAYER_NORM(layer_norm_fwd_f32, float)
EXPORT_LAYER_NORM(layer_norm_fwd_f64, double)
EXPORT_LAYER_NORM(layer_norm_fwd_bf16, __nv_bfloat16)

#define EXPORT_CHAIN(suffix, T)                                                                \
  extern "C" void norm_chain_fwd_##suffix(const void* x, void* y, void* sums, int64_t rows,    \
                                          int64_t n, int backwards) {                          \
    emulator::backwards = backwards;                                                           \
    norm_chain::Forward<T> op{};                                                               \
    op.sums = static_cast<double*>(sums);                                                      \
    rows::launch({{static_cast<const T*>(x)}, {n}, static_cast<T*>(y), rows, n}, op, nullptr); \
  }                                                                                            \
  extern "C" void norm_chain_bwd_##suffix(const void* dy, const void* x, const void* sums,     \
                                          void* dx, int64_t rows, int64_t n, int backwards) {  \
    emulator::backwards = backwards;                                                           \
    norm_chain::Backward<T> op{};                                                              \
    op.sums = static_cast<const double*>(sums);                                                \
    rows::launch({{static_cast<const T*>(dy), static_cast<const T*>(x)},                       \
                  {n, n},                                                                      \
                  static_cast<T*>(dx),                                                         \
                  rows,                                                                        \
                  n},                                                                          \
                 op, nullptr);                                                                 \
  }
EXPORT_CHAIN(f32, float)
EXPORT_CHAIN(f64, double)
EXPORT_CHAIN(bf16, __nv_bfloat16)

// Of x or of x + residual; the backward is in backward.cpp.
#define EXPORT_RMS(name, T, W)                                                                    \
  extern "C" void name(const void* x, const void* residual, const void* weight, void* h, void* y, \
                       void* rstd, int64_t rows, int64_t n, double eps, int backwards) {          \
    rms::FwdProblem p{};                                                                          \
    p.x = x, p.residual = residual, p.weight = weight, p.new_residual = h;                        \
    p.y = y, p.rstd = rstd, p.rows = rows, p.n = n, p.eps = eps;                                  \
    p.x_stride = p.residual_stride = n;                                                           \
    emulator::backwards = backwards;                                                              \
    residual ? rms::fwd_typed<T, W, true, T>(p) : rms::fwd_typed<T, W, false, T>(p);              \
  }
EXPORT_RMS(rms_f32, float, float)
EXPORT_RMS(rms_f64, double, double)
EXPORT_RMS(rms_bf16, __nv_bfloat16, __nv_bfloat16)
