#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>

#include "ops.h"
#include "rms_norm.h"

#define BY_DTYPE(x, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "rmsnorm", __VA_ARGS__)

Pair forward_cpu(const torch::Tensor& x_any, const torch::Tensor& w_any, double eps) {
  const torch::Tensor x = x_any.contiguous(), w = w_any.contiguous();
  const int64_t n = w.numel(), rows = n ? x.numel() / n : 0;
  torch::Tensor y = torch::empty_like(x);
  torch::Tensor rstd = torch::empty({rows}, x.options().dtype(at::toOpMathType(x.scalar_type())));
  BY_DTYPE(x, [&] {
    using C = at::opmath_type<scalar_t>;
    rmsnorm::forward_rows<scalar_t, C>(x.const_data_ptr<scalar_t>(), w.const_data_ptr<scalar_t>(),
                                       y.mutable_data_ptr<scalar_t>(), rstd.mutable_data_ptr<C>(),
                                       rows, n, static_cast<C>(eps));
  });
  return {y, rstd};
}

Pair backward_cpu(const torch::Tensor& dy_any, const torch::Tensor& x_any,
                  const torch::Tensor& w_any, const torch::Tensor& rstd) {
  const torch::Tensor dy = dy_any.contiguous(), x = x_any.contiguous(), w = w_any.contiguous();
  torch::Tensor dx = torch::empty_like(x), dw = torch::empty_like(w);
  BY_DTYPE(x, [&] {
    using C = at::opmath_type<scalar_t>;
    rmsnorm::backward_rows<scalar_t, C>(dy.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(),
                                        w.const_data_ptr<scalar_t>(), rstd.const_data_ptr<C>(),
                                        dx.mutable_data_ptr<scalar_t>(),
                                        dw.mutable_data_ptr<scalar_t>(), rstd.numel(), w.numel());
  });
  return {dx, dw};
}
