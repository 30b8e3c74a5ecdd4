// The CPU kernels of the horizontal_reduction_pointwise operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/softmax_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::horizontal_reduction_pointwise {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

std::tuple<Tensor, Tensor> forward(const Tensor& x) {
  kArgs.check_rows(x);
  Tensor cos = allocate_as(x);
  const MemoryOrder order(cos);
  Tensor sum = order.allocate_one_a_row(x, x.scalar_type());
  Columns in = columns_of(order.of(x), order.place_of(x.dim() - 1));
  softmax::side_by_side(in);
  const ForwardArgs args{
      in.data(), sum.mutable_data_ptr(), cos.mutable_data_ptr(), in.n, in.inner, in.stride,
      in.step};
  const auto element = static_cast<int>(element_of(x));
  const auto kernel = in.inner == 1 ? kernels().rows[element] : kernels().columns[element];
  softmax::each(in, 1, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  return {order.undo_rows(sum), cos};
}

Tensor backward(const Tensor& dsum, const Tensor& dcos, const Tensor& x) {
  check_bwd(dsum, dcos, x);
  Tensor dx = allocate_as(x);
  const MemoryOrder order(dx);
  const int64_t dim = order.place_of(x.dim() - 1);
  const Tensor of_sum = order.of_rows(dsum);
  Columns dys = columns_of(order.of(dcos), dim), xs = columns_of(order.of(x), dim);
  softmax::side_by_side(dys, xs);
  const BackwardArgs args{of_sum.const_data_ptr(),
                          dys.data(),
                          xs.data(),
                          dx.mutable_data_ptr(),
                          xs.n,
                          xs.inner,
                          dys.stride,
                          dys.step,
                          xs.stride,
                          xs.step};
  const auto element = static_cast<int>(element_of(x));
  const auto kernel =
      xs.inner == 1 ? kernels().rows_gradient[element] : kernels().columns_gradient[element];
  softmax::each(xs, 1, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  return dx;
}

}  // namespace
}  // namespace fuseline::horizontal_reduction_pointwise

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("horizontal_reduction_pointwise(Tensor x) -> (Tensor, Tensor)");
  m.def("_horizontal_reduction_pointwise(Tensor x) -> (Tensor, Tensor)");
  m.def("_horizontal_reduction_pointwise_bwd(Tensor dsum, Tensor dcos, Tensor x) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("horizontal_reduction_pointwise",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::forward));
  m.impl("_horizontal_reduction_pointwise",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::forward));
  m.impl("_horizontal_reduction_pointwise_bwd",
         TORCH_BOX(&fuseline::horizontal_reduction_pointwise::backward));
}
