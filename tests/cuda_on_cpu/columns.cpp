// The softmaxes and their gradients along columns.
#include "columns.h"

#include "fuseline/cuda/rows/softmax_cuda.cuh"
#include "ops/softmax_backward/impl_cuda_rows.cuh"

namespace {

using namespace fuseline;

// Of inputs side by side, [inputs, outer, n, inner], to outputs that are.
template <typename Op>
void run(const Op& op, const typename Op::T* in, typename Op::T* out, int64_t outer, int64_t n,
         int64_t inner, int64_t sms, int64_t backwards) {
  emulator::backwards = backwards;
  auto a = columns::of<Op>(in, outer, n, inner, 0);
  for (int k = 0; k < Op::INPUTS; ++k) a.in[k] = in + k * outer * n * inner;
  for (int k = 0; k < Op::OUTPUTS; ++k) a.out.of[k] = out + k * outer * n * inner;
  columns::launch(a, op, sms);
}

}  // namespace

#define EXPORT(op, name, T, ...)                                                             \
  extern "C" void op##_##name(const T* in, T* out, Stat<T>* stats, int64_t outer, int64_t n, \
                              int64_t inner, int64_t sms, int64_t backwards) {               \
    run(__VA_ARGS__, in, out, outer, n, inner, sms, backwards);                              \
  }
#define EXPORT_ALL(name, T)                                                      \
  EXPORT(softmax, name, T, softmax::Softmax<T>{})                                \
  EXPORT(log_softmax, name, T, softmax::LogSoftmax<T>{})                         \
  EXPORT(double_softmax, name, T, (softmax::DoubleSoftmax<T>{{}, stats}))        \
  EXPORT(softmax_bwd, name, T, softmax::SoftmaxBwd<T>{})                         \
  EXPORT(log_softmax_bwd, name, T, softmax::LogSoftmaxBwd<T>{})                  \
  EXPORT(double_softmax_bwd, name, T, (softmax::DoubleSoftmaxBwd<T>{{}, stats})) \
  EXPORT(softmax_backward_bwd, name, T, softmax_backward::Bwd<T>{})
EXPORT_ALL(f32, float)
EXPORT_ALL(f64, double)
EXPORT_ALL(bf16, __nv_bfloat16)
