// The CUDA kernels of the softmax operators.
#include "fuseline/cuda/columns/column_tensors.cuh"
#include "fuseline/cuda/launch/softmax_gradient.h"
#include "fuseline/cuda/rows/softmax_cuda.cuh"
#include "fuseline/softmax_aten.h"
#include "impl_args.h"

namespace fuseline::softmax {
namespace {

Tensor softmax(const Tensor& x, int64_t dim) {
  check(x, dim);
  Tensor y = allocate_like(x);
  for_dtype(x.scalar_type(), [&](auto* t) {
    rows::run_along(Softmax<std::remove_pointer_t<decltype(t)>>{}, dim, y, x);
  });
  return y;
}

Tensor softmax_bwd(const Tensor& dy, const Tensor& y, int64_t dim) {
  check_bwd(dy, y, dim);
  Tensor dx = allocate_like(y);
  write_gradient(dx, dy, y, dim);
  return dx;
}

Takeover takeover = Aten<kSoftmax, &softmax, &softmax_bwd>::takeover("CUDA");

}  // namespace
}  // namespace fuseline::softmax

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("softmax", TORCH_BOX(&fuseline::softmax::softmax));
  m.impl("_softmax", TORCH_BOX(&fuseline::softmax::softmax));
  m.impl("_softmax_bwd", TORCH_BOX(&fuseline::softmax::softmax_bwd));
}
