// The CUDA kernels of the masked_softmax operators.
#include "fuseline/cuda/launch/row_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_rows.cuh"

namespace fuseline::masked_softmax {
namespace {

Causal causal_of(const Tensor& x, bool causal) {
  return Causal(causal ? x.sizes()[x.dim() - 2] : 0);
}

Tensor expanded(const Tensor& mask, const Tensor& x, const std::vector<int64_t>& strides) {
  AtenTensorHandle view = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(
      mask.get(), x.dim(), x.sizes().data(), strides.data(), 0, &view));
  return Tensor(view);
}

// Where the mask's rows lie for those of x: of a copy that it becomes, where they lie too far
// apart.
MaskRows mask_rows(Tensor& mask, const Tensor& x) {
  const auto strides = broadcast_strides(mask, x);
  MaskRows where;
  if (!where.place(x.sizes().data(), strides.data(), x.dim() - 1)) {
    mask = counted_contiguous(expanded(mask, x, strides));
    return mask_rows(mask, x);
  }
  where.data = mask.const_data_ptr();
  where.is_float = mask.scalar_type() != x.scalar_type();
  where.last = strides.back();
  return where;
}

Tensor forward(const Tensor& x, std::optional<Tensor> mask, bool causal, double scale, bool log) {
  check(x, mask, causal, scale);
  Tensor y = allocate_like(x);
  if (y.numel() == 0) return y;
  if (mask && x.element_size() == sizeof(double)) mask = as(*mask, x.scalar_type());
  const MaskRows where = mask ? mask_rows(*mask, x) : MaskRows{};
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const auto by = static_cast<Stat<T>>(scale);
    rows::run(Forward<T>{{}, where, causal_of(x, causal), by, log}, y, x);
  });
  return y;
}

Tensor backward(const Tensor& dy, const Tensor& y, bool causal, double scale, bool log) {
  check_bwd(dy, y, causal, scale);
  Tensor dx = allocate_like(y);
  if (dx.numel() == 0) return dx;
  for_dtype(y.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const auto by = static_cast<Stat<T>>(scale);
    rows::run(Backward<T>{{}, causal_of(y, causal), by, log}, dx, dy, y);
  });
  return dx;
}

}  // namespace
}  // namespace fuseline::masked_softmax

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("masked_softmax", TORCH_BOX(&fuseline::masked_softmax::forward));
  m.impl("_masked_softmax", TORCH_BOX(&fuseline::masked_softmax::forward));
  m.impl("_masked_softmax_bwd", TORCH_BOX(&fuseline::masked_softmax::backward));
}
