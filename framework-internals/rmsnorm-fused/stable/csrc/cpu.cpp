#include <tuple>

#include "rms_norm.h"
#include "tensors.h"

namespace rmsnorm {
namespace {

using Pair = std::tuple<Tensor, Tensor>;

Pair forward(const Tensor& x_any, const Tensor& w_any, double eps) {
  const Tensor x = torch::stable::contiguous(x_any), w = torch::stable::contiguous(w_any);
  const int64_t n = w.numel(), rows = n ? x.numel() / n : 0;
  Tensor y = torch::stable::empty_like(x);
  Tensor rstd = torch::stable::new_empty(x, {rows}, compute_dtype(x));
  by_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    using C = typename Compute<T>::type;
    forward_rows<T, C>(static_cast<const T*>(x.const_data_ptr()),
                       static_cast<const T*>(w.const_data_ptr()),
                       static_cast<T*>(y.mutable_data_ptr()),
                       static_cast<C*>(rstd.mutable_data_ptr()), rows, n, static_cast<C>(eps));
  });
  return {y, rstd};
}

Pair backward(const Tensor& dy_any, const Tensor& x_any, const Tensor& w_any, const Tensor& rstd) {
  const Tensor dy = torch::stable::contiguous(dy_any), x = torch::stable::contiguous(x_any),
               w = torch::stable::contiguous(w_any);
  Tensor dx = torch::stable::empty_like(x), dw = torch::stable::empty_like(w);
  by_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    using C = typename Compute<T>::type;
    backward_rows<T, C>(
        static_cast<const T*>(dy.const_data_ptr()), static_cast<const T*>(x.const_data_ptr()),
        static_cast<const T*>(w.const_data_ptr()), static_cast<const C*>(rstd.const_data_ptr()),
        static_cast<T*>(dx.mutable_data_ptr()), static_cast<T*>(dw.mutable_data_ptr()),
        rstd.numel(), w.numel());
  });
  return {dx, dw};
}

}  // namespace
}  // namespace rmsnorm

STABLE_TORCH_LIBRARY(rmsnorm_stable, m) {
  m.def("forward(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)");
  m.def("backward(Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL(rmsnorm_stable, CPU, m) {
  m.impl("forward", TORCH_BOX(&rmsnorm::forward));
  m.impl("backward", TORCH_BOX(&rmsnorm::backward));
}
