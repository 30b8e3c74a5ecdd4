// What every backend of softmax checks before it touches memory (raw torch.ops calls are public).
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::softmax {

inline void check(const Tensor& x) { NormArgs{"softmax"}.check_rows(x); }

inline void check_bwd(const Tensor& dy, const Tensor& y) {
  constexpr NormArgs kArgs{"softmax", "y"};
  kArgs.check_rows(y);
  kArgs.check_twin("dy", dy, y);
}

}  // namespace fuseline::softmax
