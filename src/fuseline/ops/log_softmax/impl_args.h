// What every backend of log_softmax checks before it touches memory (raw torch.ops calls are
// public).
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::log_softmax {

// `dim` comes back counted from the first.
inline void check(const Tensor& x, int64_t& dim) { NormArgs{"log_softmax"}.check_along(x, dim); }

inline void check_bwd(const Tensor& dy, const Tensor& y, int64_t& dim) {
  constexpr NormArgs kArgs{"log_softmax", "y"};
  kArgs.check_along(y, dim);
  kArgs.check_twin("dy", dy, y);
}

}  // namespace fuseline::log_softmax
