// The CUDA kernels of the log_softmax operators.
#include "fuseline/cuda/columns/column_tensors.cuh"
#include "fuseline/cuda/rows/softmax_cuda.cuh"
#include "fuseline/softmax_aten.h"
#include "impl_args.h"

namespace fuseline::log_softmax {
namespace {

Tensor log_softmax(const Tensor& x, int64_t dim) {
  check(x, dim);
  Tensor y = allocate_like(x);
  for_dtype(x.scalar_type(), [&](auto* t) {
    rows::run_along(softmax::LogSoftmax<std::remove_pointer_t<decltype(t)>>{}, dim, y, x);
  });
  return y;
}

Tensor log_softmax_bwd(const Tensor& dy, const Tensor& y, int64_t dim) {
  check_bwd(dy, y, dim);
  Tensor dx = allocate_like(y);
  for_dtype(y.scalar_type(), [&](auto* t) {
    rows::run_along(softmax::LogSoftmaxBwd<std::remove_pointer_t<decltype(t)>>{}, dim, dx, dy, y);
  });
  return dx;
}

Takeover takeover =
    softmax::Aten<softmax::kLogSoftmax, &log_softmax, &log_softmax_bwd>::takeover("CUDA");

}  // namespace
}  // namespace fuseline::log_softmax

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("log_softmax", TORCH_BOX(&fuseline::log_softmax::log_softmax));
  m.impl("_log_softmax", TORCH_BOX(&fuseline::log_softmax::log_softmax));
  m.impl("_log_softmax_bwd", TORCH_BOX(&fuseline::log_softmax::log_softmax_bwd));
}
