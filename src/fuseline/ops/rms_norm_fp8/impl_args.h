// What every backend of rms_norm_fp8 checks before it touches memory (raw torch.ops calls are
// public), and the output it allocates.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::rms_norm_fp8 {

// Refuses what the kernels cannot read; `weight` comes back contiguous.
inline void check(const Tensor& x, std::optional<Tensor>& weight, const Tensor& scale) {
  constexpr NormArgs args{"rms_norm_fp8"};
  args.check_rows(x);
  STD_TORCH_CHECK(x.scalar_type() != ScalarType::Double,
                  "rms_norm_fp8: x must be float32, float16 or bfloat16, got Double");
  args.check_weight(weight, x);
  args.check_readable("scale", scale);
  STD_TORCH_CHECK(scale.scalar_type() == ScalarType::Float,
                  "rms_norm_fp8: scale must be float32, got ", dtype_of(scale));
  STD_TORCH_CHECK(scale.numel() == 1, "rms_norm_fp8: scale has shape ", to_string(scale.sizes()),
                  ", expected one element");
  STD_TORCH_CHECK(device_of(scale) == device_of(x), "rms_norm_fp8: scale is on ",
                  to_string(device_of(scale)), ", x is on ", to_string(device_of(x)));
}

inline Tensor allocate_y(const Tensor& x) {
  return allocate(x.sizes(), ScalarType::Float8_e4m3fn, device_of(x));
}

}  // namespace fuseline::rms_norm_fp8
