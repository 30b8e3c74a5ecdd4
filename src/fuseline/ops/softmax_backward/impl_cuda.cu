// The CUDA kernel of softmax_backward.
#include "fuseline/row_tensors.cuh"
#include "fuseline/softmax_cuda.cuh"
#include "impl_args.h"

namespace fuseline::softmax_backward {
namespace {

Tensor softmax_backward(const Tensor& dy, const Tensor& y) {
  check(dy, y);
  Tensor dx = allocate_like(y);
  for_dtype(y.scalar_type(), [&](auto* t) {
    rows::run(softmax::SoftmaxBwd<std::remove_pointer_t<decltype(t)>>{}, dx, dy, y);
  });
  return dx;
}

}  // namespace
}  // namespace fuseline::softmax_backward

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
  m.impl("_softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
}
