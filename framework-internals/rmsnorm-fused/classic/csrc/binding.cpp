// The same two functions bound twice: by pybind11, past the dispatcher, and by TORCH_LIBRARY, once
// plain and once with a torch::autograd::Function in C++.
#include <torch/extension.h>

#include "ops.h"

namespace {

Pair forward(const torch::Tensor& x, const torch::Tensor& w, double eps) {
#ifdef WITH_CUDA
  if (x.is_cuda()) return forward_cuda(x, w, eps);
#endif
  return forward_cpu(x, w, eps);
}

Pair backward(const torch::Tensor& dy, const torch::Tensor& x, const torch::Tensor& w,
              const torch::Tensor& rstd) {
#ifdef WITH_CUDA
  if (x.is_cuda()) return backward_cuda(dy, x, w, rstd);
#endif
  return backward_cpu(dy, x, w, rstd);
}

torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& w, double eps) {
  return std::get<0>(forward(x, w, eps));
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& x,
                               const torch::Tensor& w, double eps) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [y, rstd] = ::forward(x, w, eps);
    ctx->save_for_backward({x, w, rstd});
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list dy) {
    const auto saved = ctx->get_saved_variables();
    auto [dx, dw] = ::backward(dy[0], saved[0], saved[1], saved[2]);
    return {dx, dw, torch::Tensor()};
  }
};

torch::Tensor rms_norm_autograd(const torch::Tensor& x, const torch::Tensor& w, double eps) {
  return RmsNorm::apply(x, w, eps);
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("rms_norm", &rms_norm);
  m.def("forward", &forward);
  m.def("backward", &backward);
}

TORCH_LIBRARY(rmsnorm_classic, m) {
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("rms_norm_autograd(Tensor x, Tensor weight, float eps) -> Tensor");
}
TORCH_LIBRARY_IMPL(rmsnorm_classic, CPU, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("rms_norm_autograd", &rms_norm);
}
TORCH_LIBRARY_IMPL(rmsnorm_classic, CUDA, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("rms_norm_autograd", &rms_norm);
}
TORCH_LIBRARY_IMPL(rmsnorm_classic, Autograd, m) {
  m.impl("rms_norm_autograd", &rms_norm_autograd);
}
