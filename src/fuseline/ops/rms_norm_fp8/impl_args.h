// What every backend of rms_norm_fp8 checks before it touches memory: raw torch.ops calls are
// public.
#pragma once

#include "fuseline/core/cpp/fp8_args.h"

namespace fuseline::rms_norm_fp8 {

// Refuses what the kernels cannot read; `weight` comes back contiguous.
inline void check(const Tensor& x, std::optional<Tensor>& weight, const Tensor& scale) {
  constexpr Fp8Args args{"rms_norm_fp8"};
  args.check_rows(x);
  args.check_weight(weight, x);
  args.check_scale(scale, x);
}

}  // namespace fuseline::rms_norm_fp8
