// What every backend of add_rms_norm checks before it touches memory: raw torch.ops calls are
// public.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::add_rms_norm {

// Refuses what the kernels cannot read; `weight` comes back contiguous.
inline void check_fwd(const Tensor& x, const Tensor& residual, std::optional<Tensor>& weight) {
  constexpr NormArgs args{"add_rms_norm"};
  args.check_rows(x);
  args.check_twin("residual", residual, x);
  args.check_weight(weight, x);
}

// The same; `weight` and `rstd` come back contiguous.
inline void check_bwd(const Tensor& dy, const std::optional<Tensor>& d_new_residual,
                      const Tensor& new_residual, std::optional<Tensor>& weight, Tensor& rstd) {
  constexpr NormArgs args{"add_rms_norm", "new_residual"};
  args.check_rows(new_residual);
  args.check_twin("dy", dy, new_residual);
  if (d_new_residual) args.check_twin("d_new_residual", *d_new_residual, new_residual);
  args.check_weight(weight, new_residual);
  args.check_statistic("rstd", rstd, new_residual);
}

}  // namespace fuseline::add_rms_norm
