// The CUDA kernels of the horizontal_reduction_pointwise operators.
#include <tuple>

#include "fuseline/cuda/columns/column_tensors.cuh"
#include "fuseline/cuda/pointwise/pointwise_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_gradient.cuh"
#include "impl_cuda_rows.cuh"

namespace fuseline::horizontal_reduction_pointwise {
namespace {

std::tuple<Tensor, Tensor> forward(const Tensor& x) {
  kArgs.check_rows(x);
  Tensor cos = allocate_as(x);
  const MemoryOrder order(cos);
  const rows::InOrder ordered(order, x);
  const Tensor sum = ordered.allocate(x.scalar_type());
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Forward<T> op{};
    op.sums = static_cast<T*>(sum.mutable_data_ptr());
    ordered.run(op, {cos});
  });
  return {ordered.made(sum), cos};
}

Tensor backward(const Tensor& dsum, const Tensor& dcos, const Tensor& x) {
  check_bwd(dsum, dcos, x);
  Tensor dx = allocate_as(x);
  if (x.numel() == 0) return dx;
  const DeviceScope scope(device_of(x).index);
  for_dtype(x.scalar_type(), [&](auto* t) {
    using pointwise::operand;
    pointwise::run<Backward<std::remove_pointer_t<decltype(t)>>>(
        {operand(dcos, dx), operand(x, dx), pointwise::of_rows(dsum)}, dx);
  });
  return dx;
}

}  // namespace
}  // namespace fuseline::horizontal_reduction_pointwise

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("horizontal_reduction_pointwise",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::forward));
  m.impl("_horizontal_reduction_pointwise",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::forward));
  m.impl("_horizontal_reduction_pointwise_bwd",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::backward));
}
