// The CPU kernel of the two rms_norm_fp8 operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rms_cpu.h"
#include "impl_args.h"

namespace fuseline::rms_norm_fp8 {

FUSELINE_CPU_KERNELS(rms::Kernels)

namespace {

Tensor rms_norm_fp8(const Tensor& x, std::optional<Tensor> weight, const Tensor& scale,
                    double eps) {
  check(x, weight, scale);
  Tensor y = allocate_e4m3(x);
  const float divisor = *static_cast<const float*>(scale.const_data_ptr());
  rms::forward(kernels(), x, nullptr, weight, eps, nullptr, y, nullptr, 0, divisor);
  return y;
}

}  // namespace
}  // namespace fuseline::rms_norm_fp8

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("rms_norm_fp8(Tensor x, Tensor? weight, Tensor scale, float eps) -> Tensor");
  m.def("_rms_norm_fp8(Tensor x, Tensor? weight, Tensor scale, float eps) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("rms_norm_fp8", TORCH_BOX(&fuseline::rms_norm_fp8::rms_norm_fp8));
  m.impl("_rms_norm_fp8", TORCH_BOX(&fuseline::rms_norm_fp8::rms_norm_fp8));
}
