// The kernels of the softmax's gradient.
#include "fuseline/cuda/columns/column_tensors.cuh"
#include "fuseline/cuda/launch/softmax_gradient.h"
#include "fuseline/cuda/rows/softmax_cuda.cuh"

namespace fuseline::softmax {

void write_gradient(const Tensor& dx, const Tensor& dy, const Tensor& y, int64_t dim) {
  for_dtype(y.scalar_type(), [&](auto* t) {
    rows::run_along(SoftmaxBwd<std::remove_pointer_t<decltype(t)>>{}, dim, dx, dy, y);
  });
}

}  // namespace fuseline::softmax
