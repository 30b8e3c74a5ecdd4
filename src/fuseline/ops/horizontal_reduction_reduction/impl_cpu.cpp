// The CPU kernels of the horizontal_reduction_reduction operators.
#include <optional>
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/softmax_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::horizontal_reduction_reduction {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

// The sums, the largest elements and, if COUNTS, how many are as large.
template <bool COUNTS>
auto forward(const Tensor& x) {
  check(x);
  const MemoryOrder order = order_of(x);
  Tensor sum = order.allocate_one_a_row(x, x.scalar_type());
  Tensor amax = order.allocate_one_a_row(x, x.scalar_type());
  std::optional<Tensor> count;
  if (COUNTS) count = order.allocate_one_a_row(x, ScalarType::Double);
  Columns in = columns_of(order.of(x), order.place_of(x.dim() - 1));
  softmax::side_by_side(in);
  const ForwardArgs args{in.data(),
                         sum.mutable_data_ptr(),
                         amax.mutable_data_ptr(),
                         count ? static_cast<double*>(count->mutable_data_ptr()) : nullptr,
                         in.n,
                         in.inner,
                         in.stride,
                         in.step};
  const auto element = static_cast<int>(element_of(x));
  const auto kernel = in.inner == 1 ? kernels().rows[element] : kernels().columns[element];
  softmax::each(in, 1, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  const std::tuple found{order.undo_rows(sum), order.undo_rows(amax)};
  if constexpr (COUNTS) {
    return std::tuple_cat(found, std::tuple{order.undo_rows(*count)});
  } else {
    return found;
  }
}

Tensor backward(const Tensor& dsum, const Tensor& damax, const Tensor& x, const Tensor& amax,
                const Tensor& count) {
  check_bwd(dsum, damax, x, amax, count);
  Tensor dx = allocate_as(x);
  const MemoryOrder order(dx);
  const Tensor of_rows[] = {order.of_rows(dsum), order.of_rows(damax), order.of_rows(amax),
                            order.of_rows(count)};
  Columns xs = columns_of(order.of(x), order.place_of(x.dim() - 1));
  softmax::side_by_side(xs);
  const BackwardArgs args{of_rows[0].const_data_ptr(),
                          of_rows[1].const_data_ptr(),
                          xs.data(),
                          of_rows[2].const_data_ptr(),
                          static_cast<const double*>(of_rows[3].const_data_ptr()),
                          dx.mutable_data_ptr(),
                          xs.n,
                          xs.inner,
                          xs.stride,
                          xs.step};
  const auto element = static_cast<int>(element_of(x));
  const auto kernel =
      xs.inner == 1 ? kernels().rows_gradient[element] : kernels().columns_gradient[element];
  softmax::each(xs, 1, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  return dx;
}

}  // namespace
}  // namespace fuseline::horizontal_reduction_reduction

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("horizontal_reduction_reduction(Tensor x) -> (Tensor, Tensor)");
  m.def("_horizontal_reduction_reduction(Tensor x) -> (Tensor, Tensor)");
  m.def("_horizontal_reduction_reduction_fwd(Tensor x) -> (Tensor, Tensor, Tensor)");
  m.def(
      "_horizontal_reduction_reduction_bwd(Tensor dsum, Tensor damax, Tensor x, Tensor amax, "
      "Tensor count) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("horizontal_reduction_reduction",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::forward<false>));
  m.impl("_horizontal_reduction_reduction",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::forward<false>));
  m.impl("_horizontal_reduction_reduction_fwd",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::forward<true>));
  m.impl("_horizontal_reduction_reduction_bwd",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::backward));
}
