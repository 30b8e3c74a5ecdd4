// The CUDA kernels of the swiglu operators.
#include "fuseline/cuda/launch/cuda_rows.h"
#include "fuseline/cuda/pointwise/gated_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_silu.cuh"

namespace fuseline::swiglu {
namespace {

Tensor forward(const Tensor& a, std::optional<Tensor> b) {
  return gated::forward<Silu>(kArgs, a, b);
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& a, std::optional<Tensor> b) {
  return gated::backward<Silu>(kArgs, dy, a, b);
}

}  // namespace
}  // namespace fuseline::swiglu

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("swiglu", TORCH_BOX(&fuseline::swiglu::forward));
  m.impl("_swiglu", TORCH_BOX(&fuseline::swiglu::forward));
  m.impl("_swiglu_bwd", TORCH_BOX(&fuseline::swiglu::backward));
}
