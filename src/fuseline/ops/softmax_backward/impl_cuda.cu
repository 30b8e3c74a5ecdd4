// The CUDA kernel of softmax_backward.
#include "fuseline/column_tensors.cuh"
#include "fuseline/softmax_cuda.cuh"
#include "impl_args.h"

namespace fuseline::softmax_backward {
namespace {

Tensor softmax_backward(const Tensor& dy, const Tensor& y, int64_t dim) {
  check(dy, y, dim);
  Tensor dx = allocate_like(y);
  for_dtype(y.scalar_type(), [&](auto* t) {
    rows::run_along(softmax::SoftmaxBwd<std::remove_pointer_t<decltype(t)>>{}, dim, dx, dy, y);
  });
  return dx;
}

}  // namespace
}  // namespace fuseline::softmax_backward

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
  m.impl("_softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
}
