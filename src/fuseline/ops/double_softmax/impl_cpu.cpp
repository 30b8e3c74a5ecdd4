// The CPU kernels of the double_softmax operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/softmax_cpu.h"
#include "impl_args.h"

namespace fuseline::double_softmax {

FUSELINE_CPU_KERNELS(softmax::Kernels)

namespace {

Tensor double_softmax(const Tensor& x, int64_t dim) {
  check(x, dim);
  return softmax::forward(kernels(), x, dim);
}

std::tuple<Tensor, Tensor> double_softmax_fwd(const Tensor& x, int64_t dim) {
  check(x, dim);
  Tensor stats = allocate_stats(x, dim);
  return {softmax::forward(kernels(), x, dim, &stats), stats};
}

Tensor double_softmax_bwd(const Tensor& dy, const Tensor& x, Tensor stats, int64_t dim) {
  check_bwd(dy, x, stats, dim);
  return softmax::gradient(kernels(), 2 * softmax::kExponential, dy, x, dim, &stats);
}

}  // namespace
}  // namespace fuseline::double_softmax

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("double_softmax(Tensor x, int dim) -> Tensor");
  m.def("_double_softmax(Tensor x, int dim) -> Tensor");
  m.def("_double_softmax_fwd(Tensor x, int dim) -> (Tensor, Tensor)");
  m.def("_double_softmax_bwd(Tensor dy, Tensor x, Tensor stats, int dim) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("double_softmax", TORCH_BOX(&fuseline::double_softmax::double_softmax));
  m.impl("_double_softmax", TORCH_BOX(&fuseline::double_softmax::double_softmax));
  m.impl("_double_softmax_fwd", TORCH_BOX(&fuseline::double_softmax::double_softmax_fwd));
  m.impl("_double_softmax_bwd", TORCH_BOX(&fuseline::double_softmax::double_softmax_bwd));
}
