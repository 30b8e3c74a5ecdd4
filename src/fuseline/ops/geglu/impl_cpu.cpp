// The CPU kernels of the geglu operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/gated/gated_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::geglu {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

const gated::Kernels& kernels_by(const std::string& approximate) {
  return kernels().by[static_cast<int>(formula_of(approximate))];
}

Tensor forward(const Tensor& a, std::optional<Tensor> b, std::string approximate) {
  return gated::forward(kArgs, kernels_by(approximate), a, b);
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& a, std::optional<Tensor> b,
                                    std::string approximate) {
  return gated::backward(kArgs, kernels_by(approximate), dy, a, b);
}

}  // namespace
}  // namespace fuseline::geglu

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("geglu(Tensor a, Tensor? b, str approximate) -> Tensor");
  m.def("_geglu(Tensor a, Tensor? b, str approximate) -> Tensor");
  m.def("_geglu_bwd(Tensor dy, Tensor a, Tensor? b, str approximate) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("geglu", TORCH_BOX(&fuseline::geglu::forward));
  m.impl("_geglu", TORCH_BOX(&fuseline::geglu::forward));
  m.impl("_geglu_bwd", TORCH_BOX(&fuseline::geglu::backward));
}
