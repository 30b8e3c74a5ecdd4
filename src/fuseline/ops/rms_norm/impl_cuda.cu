// CUDA backend of rms_norm: checks, allocation, launch, registration. Kernels: impl_cuda_*.cuh.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fuseline/core/cpp/cuda.h"
#include "impl_args.h"
#include "impl_aten.h"
#include "impl_cuda_launch.h"

namespace fuseline::rms_norm {
namespace {

WeightType weight_type(const Tensor& x, const std::optional<Tensor>& weight) {
  return weight && weight->scalar_type() != x.scalar_type() ? WeightType::kFloat
                                                            : WeightType::kSame;
}

// Calls f with a null pointer of the element type of x: the dispatch over dtypes.
template <typename F>
auto for_dtype(ScalarType dtype, const F& f) {
  switch (dtype) {
    case ScalarType::Double:
      return f(static_cast<double*>(nullptr));
    case ScalarType::Float:
      return f(static_cast<float*>(nullptr));
    case ScalarType::Half:
      return f(static_cast<__half*>(nullptr));
    default:
      return f(static_cast<__nv_bfloat16*>(nullptr));
  }
}

// Makes y and, where there is a place for it, rstd (allocate_rstd says what `ones` are).
Tensor forward(const Tensor& x, std::optional<Tensor> weight, double eps, double weight_offset,
               Tensor* rstd, size_t ones = 0) {
  check_x_weight(x, weight, weight_offset);
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  const Rows view = rows_of(x);
  Tensor y = allocate_like(x);
  if (rstd) *rstd = allocate_rstd(x, ones);
  if (view.rows == 0 || (view.n == 0 && !rstd)) return y;
  const FwdProblem p{view.data(),
                     weight ? weight->const_data_ptr() : nullptr,
                     y.mutable_data_ptr(),
                     rstd ? rstd->mutable_data_ptr() : nullptr,
                     view.rows,
                     view.stride,
                     view.n,
                     eps,
                     weight_offset,
                     weight_type(x, weight),
                     current_stream(device.index)};
  FUSELINE_CUDA_CHECK(for_dtype(
      x.scalar_type(), [&](auto* t) { return launch_fwd<std::remove_pointer_t<decltype(t)>>(p); }));
  return y;
}

Tensor rms_norm(const Tensor& x, std::optional<Tensor> weight, double eps, double weight_offset) {
  return forward(x, std::move(weight), eps, weight_offset, nullptr);
}

std::tuple<Tensor, Tensor> rms_norm_fwd(const Tensor& x, std::optional<Tensor> weight, double eps,
                                        double weight_offset) {
  Tensor rstd = x;
  Tensor y = forward(x, std::move(weight), eps, weight_offset, &rstd);
  return {std::move(y), std::move(rstd)};
}

std::tuple<Tensor, Tensor> rms_norm_bwd(const Tensor& dy, const Tensor& x,
                                        std::optional<Tensor> weight, Tensor rstd, bool need_dx,
                                        bool need_dweight, double weight_offset) {
  check_x_weight(x, weight, weight_offset);
  check_dy_rstd(dy, x, rstd);
  need_dweight = need_dweight && weight;
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  Tensor dx = need_dx ? allocate_like(x) : allocate_none(x);
  Tensor dweight =
      need_dweight ? allocate(weight->sizes(), weight->scalar_type(), device) : allocate_none(x);
  if (x.sizes()[x.dim() - 1] == 0 || !(need_dx || need_dweight)) return {dx, dweight};

  const Rows view = rows_of(x);
  const Rows grad = rows_of(dy);
  BwdProblem p{grad.data(),
               view.data(),
               weight ? weight->const_data_ptr() : nullptr,
               rstd.const_data_ptr(),
               need_dx ? dx.mutable_data_ptr() : nullptr,
               need_dweight ? dweight.mutable_data_ptr() : nullptr,
               nullptr,
               view.rows,
               grad.stride,
               view.stride,
               view.n,
               0,
               0,
               weight_offset,
               weight_type(x, weight),
               current_stream(device.index)};
  const auto launch = [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    p.parts = bwd_parts<T>(p, sm_count(device.index));
    std::optional<Tensor> partial;
    if (need_dweight) {
      const int64_t sizes[] = {p.parts, p.n};
      partial = allocate(IntHeaderOnlyArrayRef(sizes, 2), stat_dtype(x.scalar_type()), device);
      p.partial = partial->mutable_data_ptr();
    }
    return launch_bwd<T>(p);
  };
  FUSELINE_CUDA_CHECK(for_dtype(x.scalar_type(), launch));
  return {dx, dweight};
}

using OnCuda = Aten<&forward, &rms_norm_bwd>;
Takeover takeover("rms_norm", "CUDA",
                  {{"_fused_rms_norm", TORCH_BOX(&OnCuda::fwd), &OnCuda::fwd_calls},
                   {"_fused_rms_norm_backward", TORCH_BOX(&OnCuda::bwd), &OnCuda::bwd_calls}});

}  // namespace
}  // namespace fuseline::rms_norm

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("rms_norm", TORCH_BOX(&fuseline::rms_norm::rms_norm));
  m.impl("_rms_norm", TORCH_BOX(&fuseline::rms_norm::rms_norm));
  m.impl("_rms_norm_fwd", TORCH_BOX(&fuseline::rms_norm::rms_norm_fwd));
  m.impl("_rms_norm_bwd", TORCH_BOX(&fuseline::rms_norm::rms_norm_bwd));
}
