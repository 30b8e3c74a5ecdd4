// What every backend of softmax_backward checks before it touches memory (raw torch.ops calls are
// public).
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::softmax_backward {

// `dim` comes back counted from the first.
inline void check(const Tensor& dy, const Tensor& y, int64_t& dim) {
  constexpr NormArgs kArgs{"softmax_backward", "dy"};
  kArgs.check_along(dy, dim);
  kArgs.check_twin("y", y, dy);
}

}  // namespace fuseline::softmax_backward
