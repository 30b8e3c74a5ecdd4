// The CPU kernel of the two layer_norm_fp8 operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/fp8/norm_fp8_cpu.h"

namespace fuseline::layer_fp8 {

FUSELINE_CPU_KERNELS(fp8::Kernels)

}  // namespace fuseline::layer_fp8

namespace fuseline::layer_norm_fp8 {
namespace {

constexpr Fp8Args kArgs{"layer_norm_fp8"};

Tensor forward(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias,
               const Tensor& scale, double eps) {
  return fp8::by_scale(kArgs, layer_fp8::kernels(),
                       {x, nullptr, std::move(weight), std::move(bias), eps}, scale);
}

}  // namespace
}  // namespace fuseline::layer_norm_fp8

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def(
      "layer_norm_fp8(Tensor x, Tensor? weight, Tensor? bias, Tensor scale, float eps) -> "
      "Tensor");
  m.def(
      "_layer_norm_fp8(Tensor x, Tensor? weight, Tensor? bias, Tensor scale, float eps) -> "
      "Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("layer_norm_fp8", TORCH_BOX(&fuseline::layer_norm_fp8::forward));
  m.impl("_layer_norm_fp8", TORCH_BOX(&fuseline::layer_norm_fp8::forward));
}
