// The CUDA kernels of the horizontal_reduction_pointwise operators.
#include <tuple>

#include "fuseline/cuda/columns/column_tensors.cuh"
#include "impl_args.h"
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
    ordered.run(op, {cos}, x);
  });
  return {ordered.made(sum), cos};
}

Tensor backward(const Tensor& dsum, const Tensor& dcos, const Tensor& x) {
  check_bwd(dsum, dcos, x);
  Tensor dx = allocate_as(x);
  const MemoryOrder order(dx);
  const rows::InOrder ordered(order, x);
  const Tensor of_sum = ordered.given(dsum);
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Backward<T> op{};
    op.dsum = static_cast<const T*>(of_sum.const_data_ptr());
    ordered.run(op, {dx}, dcos, x);
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
