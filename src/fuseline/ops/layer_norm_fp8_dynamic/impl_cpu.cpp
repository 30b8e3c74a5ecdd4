// The CPU kernel of the two layer_norm_fp8_dynamic operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/fp8/norm_fp8_cpu.h"

namespace fuseline::layer_fp8 {

FUSELINE_CPU_KERNELS(fp8::Kernels)

}  // namespace fuseline::layer_fp8

namespace fuseline::layer_norm_fp8_dynamic {
namespace {

constexpr Fp8Args kArgs{"layer_norm_fp8_dynamic"};

std::tuple<Tensor, Tensor> forward(const Tensor& x, std::optional<Tensor> weight,
                                   std::optional<Tensor> bias, double eps,
                                   std::optional<int64_t> block, std::optional<double> scale_ub) {
  return fp8::by_blocks(kArgs, layer_fp8::kernels(),
                        {x, nullptr, std::move(weight), std::move(bias), eps}, block, scale_ub);
}

}  // namespace
}  // namespace fuseline::layer_norm_fp8_dynamic

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def(
      "layer_norm_fp8_dynamic(Tensor x, Tensor? weight, Tensor? bias, float eps, int? block, "
      "float? scale_ub) -> "
      "(Tensor, Tensor)");
  m.def(
      "_layer_norm_fp8_dynamic(Tensor x, Tensor? weight, Tensor? bias, float eps, int? block, "
      "float? scale_ub) -> "
      "(Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("layer_norm_fp8_dynamic", TORCH_BOX(&fuseline::layer_norm_fp8_dynamic::forward));
  m.impl("_layer_norm_fp8_dynamic", TORCH_BOX(&fuseline::layer_norm_fp8_dynamic::forward));
}
