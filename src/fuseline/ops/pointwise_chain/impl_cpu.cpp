// The CPU kernels of the pointwise_chain operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::pointwise_chain {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

Tensor forward(const Tensor& x) {
  kArgs.check_tensor(x);
  Tensor y = allocate_as(x);
  const Tensor in = counted_as(x, y);
  const auto chain = kernels().forward[static_cast<int>(element_of(x))];
  const void* from = in.const_data_ptr();
  void* to = y.mutable_data_ptr();
  parallel(x.numel(), 1, [=](int64_t first, int64_t last) { chain(from, to, first, last); });
  return y;
}

Tensor backward(const Tensor& dy, const Tensor& x) {
  kArgs.check_tensor(x);
  kArgs.check_twin("dy", dy, x);
  Tensor dx = allocate_as(x);
  const Tensor dys = counted_as(dy, dx), xs = counted_as(x, dx);
  const auto slope = kernels().backward[static_cast<int>(element_of(x))];
  const void *of_y = dys.const_data_ptr(), *from = xs.const_data_ptr();
  void* to = dx.mutable_data_ptr();
  parallel(x.numel(), 1, [=](int64_t first, int64_t last) { slope(of_y, from, to, first, last); });
  return dx;
}

}  // namespace
}  // namespace fuseline::pointwise_chain

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("pointwise_chain(Tensor x) -> Tensor");
  m.def("_pointwise_chain(Tensor x) -> Tensor");
  m.def("_pointwise_chain_bwd(Tensor dy, Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("pointwise_chain", TORCH_BOX(&fuseline::pointwise_chain::forward));
  m.impl("_pointwise_chain", TORCH_BOX(&fuseline::pointwise_chain::forward));
  m.impl("_pointwise_chain_bwd", TORCH_BOX(&fuseline::pointwise_chain::backward));
}
