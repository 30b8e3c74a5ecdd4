// The CUDA kernels of the horizontal_reduction_reduction operators.
#include <optional>
#include <tuple>

#include "fuseline/cuda/columns/column_tensors.cuh"
#include "fuseline/cuda/pointwise/pointwise_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_gradient.cuh"
#include "impl_cuda_rows.cuh"

namespace fuseline::horizontal_reduction_reduction {
namespace {

// The sums, the largest elements and, if COUNTS, how many are as large.
template <bool COUNTS>
auto forward(const Tensor& x) {
  check(x);
  const MemoryOrder order = order_of(x);
  const rows::InOrder ordered(order, x);
  const Tensor sum = ordered.allocate(x.scalar_type()), amax = ordered.allocate(x.scalar_type());
  std::optional<Tensor> count;
  if (COUNTS) count = ordered.allocate(ScalarType::Double);
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Forward<T, COUNTS> op{};
    op.sums = static_cast<T*>(sum.mutable_data_ptr());
    op.amax = static_cast<T*>(amax.mutable_data_ptr());
    if (COUNTS) op.counts = static_cast<double*>(count->mutable_data_ptr());
    ordered.run(op, {});
  });
  const std::tuple found{ordered.made(sum), ordered.made(amax)};
  if constexpr (COUNTS) {
    return std::tuple_cat(found, std::tuple{ordered.made(*count)});
  } else {
    return found;
  }
}

Tensor backward(const Tensor& dsum, const Tensor& damax, const Tensor& x, const Tensor& amax,
                const Tensor& count) {
  check_bwd(dsum, damax, x, amax, count);
  Tensor dx = allocate_as(x);
  if (x.numel() == 0) return dx;
  const DeviceScope scope(device_of(x).index);
  for_dtype(x.scalar_type(), [&](auto* t) {
    using pointwise::of_rows;
    pointwise::run<Backward<std::remove_pointer_t<decltype(t)>>>(
        {pointwise::operand(x, dx), of_rows(dsum), of_rows(damax), of_rows(amax), of_rows(count)},
        dx);
  });
  return dx;
}

}  // namespace
}  // namespace fuseline::horizontal_reduction_reduction

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("horizontal_reduction_reduction",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::forward<false>));
  m.impl("_horizontal_reduction_reduction",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::forward<false>));
  m.impl("_horizontal_reduction_reduction_fwd",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::forward<true>));
  m.impl("_horizontal_reduction_reduction_bwd",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::backward));
}
