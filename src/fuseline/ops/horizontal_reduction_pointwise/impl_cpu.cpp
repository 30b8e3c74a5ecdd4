// The CPU kernels of the horizontal_reduction_pointwise operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::horizontal_reduction_pointwise {
namespace {

const Kernels& kernels() { return FUSELINE_BY_ISA(kernels); }

std::tuple<Tensor, Tensor> forward(const Tensor& x) {
  kArgs.check_rows(x);
  Tensor sum = allocate_one_a_row(x, x.scalar_type()), cos = allocate_like(x);
  const Rows in = rows_of(x);
  const ForwardArgs args{in.data(), sum.mutable_data_ptr(), cos.mutable_data_ptr(), in.n,
                         in.stride};
  const auto rows = kernels().forward[static_cast<int>(element_of(x))];
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return {sum, cos};
}

Tensor backward(Tensor dsum, const Tensor& dcos, const Tensor& x) {
  check_bwd(dsum, dcos, x);
  Tensor dx = allocate_like(x);
  const Rows dys = rows_of(dcos), xs = rows_of(x);
  const BackwardArgs args{dsum.const_data_ptr(),
                          dys.data(),
                          xs.data(),
                          dx.mutable_data_ptr(),
                          xs.n,
                          dys.stride,
                          xs.stride};
  const auto rows = kernels().backward[static_cast<int>(element_of(x))];
  parallel(xs.rows, xs.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return dx;
}

}  // namespace
}  // namespace fuseline::horizontal_reduction_pointwise

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("horizontal_reduction_pointwise",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::forward));
  m.impl("_horizontal_reduction_pointwise",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::forward));
  m.impl("_horizontal_reduction_pointwise_bwd",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::backward));
}
