// The CUDA kernels of the geglu operators.
#include "fuseline/cuda/launch/cuda_rows.h"
#include "fuseline/cuda/pointwise/gated_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_gelu.cuh"

namespace fuseline::geglu {
namespace {

using gelu::Formula;

Tensor forward(const Tensor& a, std::optional<Tensor> b, std::string approximate) {
  const bool tanh = formula_of(approximate) == Formula::tanh;
  const auto by = tanh ? gated::forward<Gelu<Formula::tanh>> : gated::forward<Gelu<Formula::erf>>;
  return by(kArgs, a, b);
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& a, std::optional<Tensor> b,
                                    std::string approximate) {
  const bool tanh = formula_of(approximate) == Formula::tanh;
  const auto by = tanh ? gated::backward<Gelu<Formula::tanh>> : gated::backward<Gelu<Formula::erf>>;
  return by(kArgs, dy, a, b);
}

}  // namespace
}  // namespace fuseline::geglu

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("geglu", TORCH_BOX(&fuseline::geglu::forward));
  m.impl("_geglu", TORCH_BOX(&fuseline::geglu::forward));
  m.impl("_geglu_bwd", TORCH_BOX(&fuseline::geglu::backward));
}
