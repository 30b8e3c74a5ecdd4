// The CPU kernel of the two rms_norm_fp8_dynamic operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/fp8/norm_fp8_cpu.h"

namespace fuseline::rms_fp8 {

FUSELINE_CPU_KERNELS(fp8::Kernels)

}  // namespace fuseline::rms_fp8

namespace fuseline::rms_norm_fp8_dynamic {
namespace {

constexpr Fp8Args kArgs{"rms_norm_fp8_dynamic"};

std::tuple<Tensor, Tensor> forward(const Tensor& x, std::optional<Tensor> weight, double eps,
                                   std::optional<int64_t> block, std::optional<double> scale_ub) {
  return fp8::by_blocks(kArgs, rms_fp8::kernels(), {x, nullptr, std::move(weight), {}, eps}, block,
                        scale_ub);
}

}  // namespace
}  // namespace fuseline::rms_norm_fp8_dynamic

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def(
      "rms_norm_fp8_dynamic(Tensor x, Tensor? weight, float eps, int? block, float? scale_ub) -> "
      "(Tensor, Tensor)");
  m.def(
      "_rms_norm_fp8_dynamic(Tensor x, Tensor? weight, float eps, int? block, float? scale_ub) -> "
      "(Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("rms_norm_fp8_dynamic", TORCH_BOX(&fuseline::rms_norm_fp8_dynamic::forward));
  m.impl("_rms_norm_fp8_dynamic", TORCH_BOX(&fuseline::rms_norm_fp8_dynamic::forward));
}
