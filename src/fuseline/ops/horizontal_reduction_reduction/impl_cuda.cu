// The CUDA kernels of the horizontal_reduction_reduction operators.
#include <tuple>

#include "fuseline/row_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_rows.cuh"

namespace fuseline::horizontal_reduction_reduction {
namespace {

template <bool COUNTS>
std::tuple<Tensor, Tensor> forward(const Tensor& x, double* counts) {
  Tensor sum = allocate_one_a_row(x, x.scalar_type()),
         amax = allocate_one_a_row(x, x.scalar_type());
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Forward<T, COUNTS> op{};
    op.sums = static_cast<T*>(sum.mutable_data_ptr());
    op.amax = static_cast<T*>(amax.mutable_data_ptr());
    op.counts = counts;
    rows::run(op, rows::Made<decltype(op)>{}, x);
  });
  return {sum, amax};
}

std::tuple<Tensor, Tensor> horizontal_reduction_reduction(const Tensor& x) {
  check(x);
  return forward<false>(x, nullptr);
}

std::tuple<Tensor, Tensor, Tensor> horizontal_reduction_reduction_fwd(const Tensor& x) {
  check(x);
  Tensor count = allocate_one_a_row(x, ScalarType::Double);
  return std::tuple_cat(forward<true>(x, static_cast<double*>(count.mutable_data_ptr())),
                        std::make_tuple(count));
}

Tensor horizontal_reduction_reduction_bwd(Tensor dsum, Tensor damax, const Tensor& x, Tensor amax,
                                          Tensor count) {
  check_bwd(dsum, damax, x, amax, count);
  Tensor dx = allocate_like(x);
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    Backward<T> op{};
    op.dsum = static_cast<const T*>(dsum.const_data_ptr());
    op.damax = static_cast<const T*>(damax.const_data_ptr());
    op.amax = static_cast<const T*>(amax.const_data_ptr());
    op.counts = static_cast<const double*>(count.const_data_ptr());
    rows::run(op, dx, x);
  });
  return dx;
}

}  // namespace
}  // namespace fuseline::horizontal_reduction_reduction

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("horizontal_reduction_reduction",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::horizontal_reduction_reduction));
  m.impl("_horizontal_reduction_reduction",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::horizontal_reduction_reduction));
  m.impl("_horizontal_reduction_reduction_fwd",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::horizontal_reduction_reduction_fwd));
  m.impl("_horizontal_reduction_reduction_bwd",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::horizontal_reduction_reduction_bwd));
}
