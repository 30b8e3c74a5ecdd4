// What both backends of rms_norm check before they touch memory: raw torch.ops calls are public.
#pragma once

#include <tuple>

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::rms_norm {

constexpr NormArgs kArgs{"rms_norm"};

// Refuses what the kernels cannot read, and an offset of no weight; `weight` comes back contiguous.
inline void check_x_weight(const Tensor& x, std::optional<Tensor>& weight, double weight_offset) {
  kArgs.check_rows(x);
  kArgs.check_weight(weight, x);
  STD_TORCH_CHECK(weight || weight_offset == 0, "rms_norm: weight_offset is ", weight_offset,
                  ", expected 0 without a weight");
}

// The same; `rstd` comes back contiguous.
inline void check_dy_rstd(const Tensor& dy, const Tensor& x, Tensor& rstd) {
  kArgs.check_twin("dy", dy, x);
  kArgs.check_statistic("rstd", rstd, x);
}

}  // namespace fuseline::rms_norm
