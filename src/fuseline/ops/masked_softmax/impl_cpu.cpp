// The CPU kernels of the masked_softmax operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::masked_softmax {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

Causal causal_of(const Tensor& x, bool causal) {
  return {causal, causal ? x.sizes()[x.dim() - 2] : 1};
}

Tensor forward(const Tensor& x, std::optional<Tensor> mask, bool causal, double scale, bool log) {
  check(x, mask, causal, scale);
  Tensor y = allocate_like(x);
  if (y.numel() == 0) return y;
  const Rows in = rows_of(x);
  ForwardArgs args{};
  args.x = in.data();
  args.y = y.mutable_data_ptr();
  args.n = in.n;
  args.x_stride = in.stride;
  args.scale = scale;
  args.causal = causal_of(x, causal);
  Mask kind = Mask::none;
  std::vector<int64_t> strides;
  if (mask) {
    kind = mask->scalar_type() == x.scalar_type() ? Mask::as_x : Mask::fp32;
    strides = broadcast_strides(*mask, x);
    args.mask = mask->const_data_ptr();
    args.sizes = x.sizes().data();
    args.strides = strides.data();
    args.dims = x.dim() - 1;
    args.last = strides.back();
  }
  const auto rows = kernels().forward[static_cast<int>(kind)][log][static_cast<int>(element_of(x))];
  constexpr int64_t kExponential = 4;  // takes a thread as long as so many elements do
  parallel(in.rows, kExponential * in.n,
           [&](int64_t first, int64_t last) { rows(args, first, last); });
  return y;
}

Tensor backward(const Tensor& dy, const Tensor& y, bool causal, double scale, bool log) {
  check_bwd(dy, y, causal, scale);
  Tensor dx = allocate_like(y);
  if (dx.numel() == 0) return dx;
  const Rows dys = rows_of(dy), ys = rows_of(y);
  const GradientArgs args{dys.data(), ys.data(), dx.mutable_data_ptr(), ys.n, dys.stride,
                          ys.stride,  scale,     causal_of(y, causal)};
  const auto rows = kernels().gradient[log][static_cast<int>(element_of(y))];
  parallel(ys.rows, ys.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return dx;
}

}  // namespace
}  // namespace fuseline::masked_softmax

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("masked_softmax(Tensor x, Tensor? mask, bool causal, float scale, bool log) -> Tensor");
  m.def("_masked_softmax(Tensor x, Tensor? mask, bool causal, float scale, bool log) -> Tensor");
  m.def("_masked_softmax_bwd(Tensor dy, Tensor y, bool causal, float scale, bool log) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("masked_softmax", TORCH_BOX(&fuseline::masked_softmax::forward));
  m.impl("_masked_softmax", TORCH_BOX(&fuseline::masked_softmax::forward));
  m.impl("_masked_softmax_bwd", TORCH_BOX(&fuseline::masked_softmax::backward));
}
