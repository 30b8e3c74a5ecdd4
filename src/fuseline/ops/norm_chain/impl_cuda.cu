// The CUDA kernels of the norm_chain operators.
#include <tuple>

#include "fuseline/cuda/launch/row_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_rows.cuh"

namespace fuseline::norm_chain {
namespace {

Tensor forward(const Tensor& x, const Tensor* sum) {
  kArgs.check_rows(x);
  Tensor y = allocate_like(x);
  for_dtype(x.scalar_type(), [&](auto* t) {
    Forward<std::remove_pointer_t<decltype(t)>> op{};
    op.sums = sum ? static_cast<double*>(sum->mutable_data_ptr()) : nullptr;
    rows::run(op, y, x);
  });
  return y;
}

Tensor norm_chain(const Tensor& x) { return forward(x, nullptr); }

std::tuple<Tensor, Tensor> norm_chain_fwd(const Tensor& x) {
  kArgs.check_rows(x);
  Tensor sum = allocate_sum(x);
  return {forward(x, &sum), sum};
}

Tensor norm_chain_bwd(const Tensor& dy, const Tensor& x, Tensor sum) {
  check(dy, x, sum);
  Tensor dx = allocate_like(x);
  for_dtype(x.scalar_type(), [&](auto* t) {
    Backward<std::remove_pointer_t<decltype(t)>> op{};
    op.sums = static_cast<const double*>(sum.const_data_ptr());
    rows::run(op, dx, dy, x);
  });
  return dx;
}

}  // namespace
}  // namespace fuseline::norm_chain

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("norm_chain", TORCH_BOX(&fuseline::norm_chain::norm_chain));
  m.impl("_norm_chain", TORCH_BOX(&fuseline::norm_chain::norm_chain));
  m.impl("_norm_chain_fwd", TORCH_BOX(&fuseline::norm_chain::norm_chain_fwd));
  m.impl("_norm_chain_bwd", TORCH_BOX(&fuseline::norm_chain::norm_chain_bwd));
}
