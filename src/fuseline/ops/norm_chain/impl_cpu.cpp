// The CPU kernels of the norm_chain operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::norm_chain {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

Tensor forward(const Tensor& x, const Tensor* sum) {
  Tensor y = allocate_like(x);
  const Rows in = rows_of(x);
  if (in.n == 0 && !sum) return y;  // any number of empty rows
  const ForwardArgs args{in.data(), y.mutable_data_ptr(),
                         sum ? static_cast<double*>(sum->mutable_data_ptr()) : nullptr, in.n,
                         in.stride};
  const auto rows = kernels().forward[static_cast<int>(element_of(x))];
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return y;
}

Tensor norm_chain(const Tensor& x) {
  kArgs.check_rows(x);
  return forward(x, nullptr);
}

std::tuple<Tensor, Tensor> norm_chain_fwd(const Tensor& x) {
  kArgs.check_rows(x);
  Tensor sum = allocate_sum(x);
  return {forward(x, &sum), sum};
}

Tensor norm_chain_bwd(const Tensor& dy, const Tensor& x, Tensor sum) {
  check(dy, x, sum);
  Tensor dx = allocate_like(x);
  const Rows dys = rows_of(dy), xs = rows_of(x);
  const BackwardArgs args{dys.data(),
                          xs.data(),
                          static_cast<const double*>(sum.const_data_ptr()),
                          dx.mutable_data_ptr(),
                          xs.n,
                          dys.stride,
                          xs.stride};
  const auto rows = kernels().backward[static_cast<int>(element_of(x))];
  parallel(xs.rows, xs.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return dx;
}

}  // namespace
}  // namespace fuseline::norm_chain

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("norm_chain(Tensor x) -> Tensor");
  m.def("_norm_chain(Tensor x) -> Tensor");
  m.def("_norm_chain_fwd(Tensor x) -> (Tensor, Tensor)");
  m.def("_norm_chain_bwd(Tensor dy, Tensor x, Tensor sum) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("norm_chain", TORCH_BOX(&fuseline::norm_chain::norm_chain));
  m.impl("_norm_chain", TORCH_BOX(&fuseline::norm_chain::norm_chain));
  m.impl("_norm_chain_fwd", TORCH_BOX(&fuseline::norm_chain::norm_chain_fwd));
  m.impl("_norm_chain_bwd", TORCH_BOX(&fuseline::norm_chain::norm_chain_bwd));
}
