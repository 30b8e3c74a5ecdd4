// Operators of row_cuda.cuh on rows that begin anywhere, chosen and launched as on a GPU.
#include "by_kernel.h"
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
