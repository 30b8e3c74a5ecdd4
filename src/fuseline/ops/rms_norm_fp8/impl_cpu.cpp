// The CPU kernel of the two rms_norm_fp8 operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/fp8/norm_fp8_cpu.h"

namespace fuseline::rms_fp8 {

FUSELINE_CPU_KERNELS(fp8::Kernels)

}  // namespace fuseline::rms_fp8

namespace fuseline::rms_norm_fp8 {
namespace {

constexpr Fp8Args kArgs{"rms_norm_fp8"};

Tensor forward(const Tensor& x, std::optional<Tensor> weight, const Tensor& scale, double eps) {
  return fp8::by_scale(kArgs, rms_fp8::kernels(), {x, nullptr, std::move(weight), {}, eps}, scale);
}

}  // namespace
}  // namespace fuseline::rms_norm_fp8

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("rms_norm_fp8(Tensor x, Tensor? weight, Tensor scale, float eps) -> Tensor");
  m.def("_rms_norm_fp8(Tensor x, Tensor? weight, Tensor scale, float eps) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("rms_norm_fp8", TORCH_BOX(&fuseline::rms_norm_fp8::forward));
  m.impl("_rms_norm_fp8", TORCH_BOX(&fuseline::rms_norm_fp8::forward));
}
