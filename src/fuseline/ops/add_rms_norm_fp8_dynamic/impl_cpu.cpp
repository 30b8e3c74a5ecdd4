// The CPU kernel of the two add_rms_norm_fp8_dynamic operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/fp8/norm_fp8_cpu.h"

namespace fuseline::rms_fp8 {

FUSELINE_CPU_KERNELS(fp8::Kernels)

}  // namespace fuseline::rms_fp8

namespace fuseline::add_rms_norm_fp8_dynamic {
namespace {

constexpr Fp8Args kArgs{"add_rms_norm_fp8_dynamic"};

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x, const Tensor& residual,
                                           std::optional<Tensor> weight, double eps,
                                           std::optional<int64_t> block,
                                           std::optional<double> scale_ub) {
  Tensor new_residual = x;
  auto [y, scale] =
      fp8::by_blocks(kArgs, rms_fp8::kernels(), {x, &residual, std::move(weight), {}, eps}, block,
                     scale_ub, &new_residual);
  return {std::move(y), std::move(scale), std::move(new_residual)};
}

}  // namespace
}  // namespace fuseline::add_rms_norm_fp8_dynamic

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def(
      "add_rms_norm_fp8_dynamic(Tensor x, Tensor residual, Tensor? weight, float eps, int? block, "
      "float? scale_ub) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "_add_rms_norm_fp8_dynamic(Tensor x, Tensor residual, Tensor? weight, float eps, int? block, "
      "float? scale_ub) -> "
      "(Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("add_rms_norm_fp8_dynamic", TORCH_BOX(&fuseline::add_rms_norm_fp8_dynamic::forward));
  m.impl("_add_rms_norm_fp8_dynamic", TORCH_BOX(&fuseline::add_rms_norm_fp8_dynamic::forward));
}
