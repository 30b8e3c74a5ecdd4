// The CUDA kernels of the horizontal_reduction_reduction operators.
#include <optional>
#include <tuple>

#include "fuseline/cuda/columns/column_tensors.cuh"
#include "impl_args.h"
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
    const rows::Made<decltype(op)> nothing{};
    ordered.run(op, nothing, x);
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
  const MemoryOrder order(dx);
  const rows::InOrder ordered(order, x);
  const Tensor of_rows[] = {ordered.given(dsum), ordered.given(damax), ordered.given(amax),
                            ordered.given(count)};
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Backward<T> op{};
    op.dsum = static_cast<const T*>(of_rows[0].const_data_ptr());
    op.damax = static_cast<const T*>(of_rows[1].const_data_ptr());
    op.amax = static_cast<const T*>(of_rows[2].const_data_ptr());
    op.counts = static_cast<const double*>(of_rows[3].const_data_ptr());
    ordered.run(op, {dx}, x);
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
