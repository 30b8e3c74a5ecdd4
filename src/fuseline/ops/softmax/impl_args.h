// What every backend of softmax checks before it touches memory (raw torch.ops calls are public).
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::softmax {

// `dim` comes back counted from the first.
inline void check(const Tensor& x, int64_t& dim) { NormArgs{"softmax"}.check_along(x, dim); }

inline void check_bwd(const Tensor& dy, const Tensor& y, int64_t& dim) {
  constexpr NormArgs kArgs{"softmax", "y"};
  kArgs.check_along(y, dim);
  kArgs.check_twin("dy", dy, y);
}

}  // namespace fuseline::softmax
