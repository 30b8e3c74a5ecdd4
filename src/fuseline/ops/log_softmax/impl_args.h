// What every backend of log_softmax checks before it touches memory (raw torch.ops calls are
// public).
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::log_softmax {

inline void check(const Tensor& x) { NormArgs{"log_softmax"}.check_rows(x); }

inline void check_bwd(const Tensor& dy, const Tensor& y) {
  constexpr NormArgs kArgs{"log_softmax", "y"};
  kArgs.check_rows(y);
  kArgs.check_twin("dy", dy, y);
}

}  // namespace fuseline::log_softmax
