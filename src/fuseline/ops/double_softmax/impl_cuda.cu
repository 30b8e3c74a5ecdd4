// The CUDA kernels of the double_softmax operators.
#include <tuple>

#include "fuseline/cuda/columns/column_tensors.cuh"
#include "fuseline/cuda/rows/softmax_cuda.cuh"
#include "impl_args.h"

namespace fuseline::double_softmax {
namespace {

Tensor forward(const Tensor& x, int64_t dim, const Tensor* stats) {
  Tensor y = allocate_like(x);
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    softmax::DoubleSoftmax<T> op{};
    op.stats = stats ? static_cast<Stat<T>*>(stats->mutable_data_ptr()) : nullptr;
    rows::run_along(op, dim, y, x);
  });
  return y;
}

Tensor double_softmax(const Tensor& x, int64_t dim) {
  check(x, dim);
  return forward(x, dim, nullptr);
}

std::tuple<Tensor, Tensor> double_softmax_fwd(const Tensor& x, int64_t dim) {
  check(x, dim);
  Tensor stats = allocate_stats(x, dim);
  return {forward(x, dim, &stats), stats};
}

Tensor double_softmax_bwd(const Tensor& dy, const Tensor& x, Tensor stats, int64_t dim) {
  check_bwd(dy, x, stats, dim);
  Tensor dx = allocate_like(x);
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    softmax::DoubleSoftmaxBwd<T> op{};
    op.stats = static_cast<const Stat<T>*>(stats.const_data_ptr());
    rows::run_along(op, dim, dx, dy, x);
  });
  return dx;
}

}  // namespace
}  // namespace fuseline::double_softmax

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("double_softmax", TORCH_BOX(&fuseline::double_softmax::double_softmax));
  m.impl("_double_softmax", TORCH_BOX(&fuseline::double_softmax::double_softmax));
  m.impl("_double_softmax_fwd", TORCH_BOX(&fuseline::double_softmax::double_softmax_fwd));
  m.impl("_double_softmax_bwd", TORCH_BOX(&fuseline::double_softmax::double_softmax_bwd));
}
