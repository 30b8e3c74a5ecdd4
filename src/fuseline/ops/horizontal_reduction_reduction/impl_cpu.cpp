// The CPU kernels of the horizontal_reduction_reduction operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::horizontal_reduction_reduction {
namespace {

const Kernels& kernels() { return FUSELINE_BY_ISA(kernels); }

std::tuple<Tensor, Tensor> forward(const Tensor& x, double* count) {
  Tensor sum = allocate_one_a_row(x, x.scalar_type()),
         amax = allocate_one_a_row(x, x.scalar_type());
  const Rows in = rows_of(x);
  const ForwardArgs args{in.data(), sum.mutable_data_ptr(), amax.mutable_data_ptr(), count, in.n,
                         in.stride};
  const auto rows = kernels().forward[static_cast<int>(element_of(x))];
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return {sum, amax};
}

std::tuple<Tensor, Tensor> horizontal_reduction_reduction(const Tensor& x) {
  check(x);
  return forward(x, nullptr);
}

std::tuple<Tensor, Tensor, Tensor> horizontal_reduction_reduction_fwd(const Tensor& x) {
  check(x);
  Tensor count = allocate_one_a_row(x, ScalarType::Double);
  return std::tuple_cat(forward(x, static_cast<double*>(count.mutable_data_ptr())),
                        std::make_tuple(count));
}

Tensor horizontal_reduction_reduction_bwd(Tensor dsum, Tensor damax, const Tensor& x, Tensor amax,
                                          Tensor count) {
  check_bwd(dsum, damax, x, amax, count);
  Tensor dx = allocate_like(x);
  const Rows xs = rows_of(x);
  const BackwardArgs args{dsum.const_data_ptr(),
                          damax.const_data_ptr(),
                          xs.data(),
                          amax.const_data_ptr(),
                          static_cast<const double*>(count.const_data_ptr()),
                          dx.mutable_data_ptr(),
                          xs.n,
                          xs.stride};
  const auto rows = kernels().backward[static_cast<int>(element_of(x))];
  parallel(xs.rows, xs.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return dx;
}

}  // namespace
}  // namespace fuseline::horizontal_reduction_reduction

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("horizontal_reduction_reduction",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::horizontal_reduction_reduction));
  m.impl("_horizontal_reduction_reduction",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::horizontal_reduction_reduction));
  m.impl("_horizontal_reduction_reduction_fwd",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::horizontal_reduction_reduction_fwd));
  m.impl("_horizontal_reduction_reduction_bwd",
         TORCH_BOX(&fuseline::horizontal_reduction_reduction::horizontal_reduction_reduction_bwd));
}
