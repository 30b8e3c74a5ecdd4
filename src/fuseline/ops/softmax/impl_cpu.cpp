// The CPU kernels of the softmax operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/softmax_cpu.h"
#include "fuseline/softmax_aten.h"
#include "impl_args.h"

namespace fuseline::softmax {

FUSELINE_CPU_KERNELS(softmax::Kernels)

namespace {

Tensor softmax(const Tensor& x, int64_t dim) {
  check(x, dim);
  return softmax::forward(kernels(), x, dim);
}

Tensor softmax_bwd(const Tensor& dy, const Tensor& y, int64_t dim) {
  check_bwd(dy, y, dim);
  return softmax::gradient(kernels(), 1, dy, y, dim);
}

Takeover takeover = Aten<kSoftmax, &softmax, &softmax_bwd>::takeover("CPU");

}  // namespace
}  // namespace fuseline::softmax

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("softmax(Tensor x, int dim) -> Tensor");
  m.def("_softmax(Tensor x, int dim) -> Tensor");
  m.def("_softmax_bwd(Tensor dy, Tensor y, int dim) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("softmax", TORCH_BOX(&fuseline::softmax::softmax));
  m.impl("_softmax", TORCH_BOX(&fuseline::softmax::softmax));
  m.impl("_softmax_bwd", TORCH_BOX(&fuseline::softmax::softmax_bwd));
}
