// The CPU kernels of the four add_rms_norm operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rms_cpu.h"
#include "impl_args.h"

namespace fuseline::add_rms_norm {

FUSELINE_CPU_KERNELS(rms::Kernels)

namespace {

// Makes y, new_residual and rstd unless its pointer is null.
std::tuple<Tensor, Tensor> forward(const Tensor& x, const Tensor& residual,
                                   std::optional<Tensor> weight, double eps, Tensor* rstd) {
  check_fwd(x, residual, weight);
  Tensor y = allocate_like(x), new_residual = allocate_like(x);
  if (rstd) *rstd = allocate_statistic(x);
  rms::forward(kernels(), x, &residual, weight, eps, &new_residual, y, rstd);
  return {std::move(y), std::move(new_residual)};
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        std::optional<Tensor> weight, double eps) {
  return forward(x, residual, std::move(weight), eps, nullptr);
}

std::tuple<Tensor, Tensor, Tensor> add_rms_norm_fwd(const Tensor& x, const Tensor& residual,
                                                    std::optional<Tensor> weight, double eps) {
  Tensor rstd = x;
  auto [y, new_residual] = forward(x, residual, std::move(weight), eps, &rstd);
  return {std::move(y), std::move(new_residual), std::move(rstd)};
}

std::tuple<Tensor, Tensor> add_rms_norm_bwd(const Tensor& dy, std::optional<Tensor> d_new_residual,
                                            const Tensor& new_residual,
                                            std::optional<Tensor> weight, Tensor rstd, bool need_dx,
                                            bool need_dweight) {
  check_bwd(dy, d_new_residual, new_residual, weight, rstd);
  return rms::backward(kernels(), dy, d_new_residual, new_residual, weight, rstd, need_dx,
                       need_dweight);
}

}  // namespace
}  // namespace fuseline::add_rms_norm

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor)");
  m.def("_add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor)");
  m.def(
      "_add_rms_norm_fwd(Tensor x, Tensor residual, Tensor? weight, float eps) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "_add_rms_norm_bwd(Tensor dy, Tensor? d_new_residual, Tensor new_residual, Tensor? weight, "
      "Tensor rstd, bool need_dx, bool need_dweight) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("add_rms_norm", TORCH_BOX(&fuseline::add_rms_norm::add_rms_norm));
  m.impl("_add_rms_norm", TORCH_BOX(&fuseline::add_rms_norm::add_rms_norm));
  m.impl("_add_rms_norm_fwd", TORCH_BOX(&fuseline::add_rms_norm::add_rms_norm_fwd));
  m.impl("_add_rms_norm_bwd", TORCH_BOX(&fuseline::add_rms_norm::add_rms_norm_bwd));
}
