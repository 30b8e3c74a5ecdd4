// What every backend of masked_softmax checks before it touches memory (raw torch.ops calls are
// public).
#pragma once

#include <cmath>
#include <vector>

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::masked_softmax {

constexpr NormArgs kArgs{"masked_softmax"};
constexpr NormArgs kArgsBwd{"masked_softmax", "y"};

inline void check_rows(const NormArgs& args, const Tensor& x, bool causal, double scale) {
  args.check_rows(x);
  STD_TORCH_CHECK(std::isfinite(scale), args.op, ": scale is ", scale,
                  ", expected a finite number");
  STD_TORCH_CHECK(!causal || x.dim() >= 2, args.op, ": ", args.x,
                  " has 1 dimension, expected at least 2 with causal");
}

inline void check(const Tensor& x, const std::optional<Tensor>& mask, bool causal, double scale) {
  check_rows(kArgs, x, causal, scale);
  if (!mask) return;
  kArgs.check_broadcast("mask", *mask, x);
  kArgs.check_kind_or_float("mask", *mask, x);
}

inline void check_bwd(const Tensor& dy, const Tensor& y, bool causal, double scale) {
  check_rows(kArgsBwd, y, causal, scale);
  kArgsBwd.check_twin("dy", dy, y);
}

// The mask's strides in the dimensions of x, 0 where it is broadcast.
inline std::vector<int64_t> broadcast_strides(const Tensor& mask, const Tensor& x) {
  std::vector<int64_t> strides(x.dim(), 0);
  const size_t lead = x.dim() - mask.dim();
  for (size_t d = 0; d < mask.sizes().size(); ++d) {
    if (mask.sizes()[d] != 1) strides[lead + d] = mask.strides()[d];
  }
  return strides;
}

}  // namespace fuseline::masked_softmax
