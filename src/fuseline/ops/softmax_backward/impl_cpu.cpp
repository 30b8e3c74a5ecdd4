// The CPU kernels of the softmax_backward operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/softmax_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::softmax_backward {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

Tensor softmax_backward(const Tensor& dy, const Tensor& y, int64_t dim) {
  check(dy, y, dim);
  return softmax::gradient(kernels().fwd, 1, dy, y, dim);
}

Gradients softmax_backward_bwd(const Tensor& ddx, const Tensor& dy, const Tensor& y, int64_t dim) {
  check(ddx, dy, y, dim);
  Gradients made{allocate_like(dy), allocate_like(y)};
  Columns views[] = {softmax::view_of(ddx, dim), softmax::view_of(dy, dim),
                     softmax::view_of(y, dim)};
  softmax::side_by_side(views[0], views[1], views[2]);
  const Columns& in = views[0];
  if (in.inner == 0) return made;
  const auto view = [&](int i) { return View{views[i].data(), views[i].stride, views[i].step}; };
  const BwdArgs args{view(0),
                     view(1),
                     view(2),
                     std::get<0>(made).mutable_data_ptr(),
                     std::get<1>(made).mutable_data_ptr(),
                     in.n,
                     in.inner};
  const int element = static_cast<int>(element_of(y));
  const auto kernel = in.inner == 1 ? kernels().rows[element] : kernels().columns[element];
  softmax::each(in, 1, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  return made;
}

}  // namespace
}  // namespace fuseline::softmax_backward

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("softmax_backward(Tensor dy, Tensor y, int dim) -> Tensor");
  m.def("_softmax_backward(Tensor dy, Tensor y, int dim) -> Tensor");
  m.def("_softmax_backward_bwd(Tensor ddx, Tensor dy, Tensor y, int dim) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
  m.impl("_softmax_backward", TORCH_BOX(&fuseline::softmax_backward::softmax_backward));
  m.impl("_softmax_backward_bwd", TORCH_BOX(&fuseline::softmax_backward::softmax_backward_bwd));
}
