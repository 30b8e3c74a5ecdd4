// The CPU kernels of the swiglu operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/gated/gated_cpu.h"
#include "impl_args.h"

namespace fuseline::swiglu {

FUSELINE_CPU_KERNELS(gated::Kernels)

namespace {

Tensor forward(const Tensor& a, std::optional<Tensor> b) {
  return gated::forward(kArgs, kernels(), a, b);
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& a, std::optional<Tensor> b) {
  return gated::backward(kArgs, kernels(), dy, a, b);
}

}  // namespace
}  // namespace fuseline::swiglu

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("swiglu", TORCH_BOX(&fuseline::swiglu::forward));
  m.impl("_swiglu", TORCH_BOX(&fuseline::swiglu::forward));
  m.impl("_swiglu_bwd", TORCH_BOX(&fuseline::swiglu::backward));
}
