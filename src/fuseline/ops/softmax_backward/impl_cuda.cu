// The CUDA kernels of the softmax_backward operators.
#include "fuseline/cuda/columns/column_tensors.cuh"
#include "fuseline/cuda/launch/softmax_gradient.h"
#include "impl_args.h"
#include "impl_cuda_rows.cuh"

namespace fuseline::softmax_backward {
namespace {

Tensor softmax_backward(const Tensor& dy, const Tensor& y, int64_t dim) {
  check(dy, y, dim);
  Tensor dx = allocate_like(y);
  softmax::write_gradient(dx, dy, y, dim);
  return dx;
}

Gradients softmax_backward_bwd(const Tensor& ddx, const Tensor& dy, const Tensor& y, int64_t dim) {
  check(ddx, dy, y, dim);
  Gradients made{allocate_like(dy), allocate_like(y)};
  for_dtype(y.scalar_type(), [&](auto* t) {
    using Op = Bwd<std::remove_pointer_t<decltype(t)>>;
    const auto& [of_dy, of_y] = made;
    rows::run_along(Op{}, dim, rows::Made<Op>{of_dy, of_y}, ddx, dy, y);
  });
  return made;
}

}  // namespace
}  // namespace fuseline::softmax_backward

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
  m.impl("_softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
  m.impl("_softmax_backward_bwd", TORCH_BOX(&fuseline::softmax_backward::softmax_backward_bwd));
}
