// The CPU kernels of the four rms_norm operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rms_cpu.h"
#include "impl_aten.h"

namespace fuseline::rms_norm {

FUSELINE_CPU_KERNELS(rms::Kernels)

namespace {

// Makes y and rstd unless its pointer is null (allocate_statistic says what `ones` are).
Tensor forward(const Tensor& x, std::optional<Tensor> weight, double eps, double weight_offset,
               Tensor* rstd, size_t ones = 0) {
  check_x_weight(x, weight, weight_offset);
  Tensor y = allocate_like(x);
  if (rstd) *rstd = allocate_statistic(x, ones);
  rms::forward(kernels(), x, nullptr, weight, eps, nullptr, y, rstd, weight_offset);
  return y;
}

Tensor rms_norm(const Tensor& x, std::optional<Tensor> weight, double eps, double weight_offset) {
  return forward(x, std::move(weight), eps, weight_offset, nullptr);
}

std::tuple<Tensor, Tensor> rms_norm_fwd(const Tensor& x, std::optional<Tensor> weight, double eps,
                                        double weight_offset) {
  Tensor rstd = x;
  Tensor y = forward(x, std::move(weight), eps, weight_offset, &rstd);
  return {y, rstd};
}

std::tuple<Tensor, Tensor> rms_norm_bwd(const Tensor& dy, const Tensor& x,
                                        std::optional<Tensor> weight, Tensor rstd, bool need_dx,
                                        bool need_dweight, double weight_offset) {
  check_x_weight(x, weight, weight_offset);
  check_dy_rstd(dy, x, rstd);
  return rms::backward(kernels(), dy, std::nullopt, x, weight, rstd, need_dx, need_dweight,
                       weight_offset);
}

using OnCpu = Aten<&forward, &rms_norm_bwd>;
// ATen has no backward of its own for the CPU: its forward is differentiated operation by
// operation.
Takeover takeover("rms_norm", "CPU",
                  {{"_fused_rms_norm", TORCH_BOX(&OnCpu::fwd), &OnCpu::fwd_calls},
                   {"_fused_rms_norm_backward", TORCH_BOX(&OnCpu::bwd), &OnCpu::bwd_calls, true}});

}  // namespace
}  // namespace fuseline::rms_norm

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> Tensor");
  m.def("_rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> Tensor");
  m.def(
      "_rms_norm_fwd(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> (Tensor, "
      "Tensor)");
  m.def(
      "_rms_norm_bwd(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, bool need_dx, "
      "bool need_dweight, float weight_offset=0.0) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&fuseline::rms_norm::rms_norm));
  m.impl("_rms_norm", TORCH_BOX(&fuseline::rms_norm::rms_norm));
  m.impl("_rms_norm_fwd", TORCH_BOX(&fuseline::rms_norm::rms_norm_fwd));
  m.impl("_rms_norm_bwd", TORCH_BOX(&fuseline::rms_norm::rms_norm_bwd));
}
