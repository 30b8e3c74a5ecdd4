// The CPU kernels of the softmax_backward operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/softmax_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::softmax_backward {
namespace {

const softmax::Kernels& kernels() { return FUSELINE_BY_ISA(kernels); }

Tensor softmax_backward(const Tensor& dy, const Tensor& y, int64_t dim) {
  check(dy, y, dim);
  return softmax::gradient(kernels(), dy, y, dim);
}

}  // namespace
}  // namespace fuseline::softmax_backward

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
  m.impl("_softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
}
