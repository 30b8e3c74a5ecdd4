// The CPU kernels of the log_softmax operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/softmax_cpu.h"
#include "fuseline/softmax_aten.h"
#include "impl_args.h"

namespace fuseline::log_softmax {

FUSELINE_CPU_KERNELS(softmax::Kernels)

namespace {

Tensor log_softmax(const Tensor& x, int64_t dim) {
  check(x, dim);
  return softmax::forward(kernels(), x, dim);
}

Tensor log_softmax_bwd(const Tensor& dy, const Tensor& y, int64_t dim) {
  check_bwd(dy, y, dim);
  return softmax::gradient(kernels(), softmax::kExponential, dy, y, dim);
}

Takeover takeover =
    softmax::Aten<softmax::kLogSoftmax, &log_softmax, &log_softmax_bwd>::takeover("CPU");

}  // namespace
}  // namespace fuseline::log_softmax

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("log_softmax(Tensor x, int dim) -> Tensor");
  m.def("_log_softmax(Tensor x, int dim) -> Tensor");
  m.def("_log_softmax_bwd(Tensor dy, Tensor y, int dim) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("log_softmax", TORCH_BOX(&fuseline::log_softmax::log_softmax));
  m.impl("_log_softmax", TORCH_BOX(&fuseline::log_softmax::log_softmax));
  m.impl("_log_softmax_bwd", TORCH_BOX(&fuseline::log_softmax::log_softmax_bwd));
}
