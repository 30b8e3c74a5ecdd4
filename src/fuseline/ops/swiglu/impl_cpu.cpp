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

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("swiglu(Tensor a, Tensor? b) -> Tensor");
  m.def("_swiglu(Tensor a, Tensor? b) -> Tensor");
  m.def("_swiglu_bwd(Tensor dy, Tensor a, Tensor? b) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("swiglu", TORCH_BOX(&fuseline::swiglu::forward));
  m.impl("_swiglu", TORCH_BOX(&fuseline::swiglu::forward));
  m.impl("_swiglu_bwd", TORCH_BOX(&fuseline::swiglu::backward));
}
