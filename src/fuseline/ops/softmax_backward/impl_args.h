// What every backend of softmax_backward checks before it touches memory (raw torch.ops calls are
// public).
#pragma once

#include <tuple>

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::softmax_backward {

constexpr NormArgs kArgs{"softmax_backward", "dy"};

using Gradients = std::tuple<Tensor, Tensor>;  // of dy and of y

// `dim` comes back counted from the first.
inline void check(const Tensor& dy, const Tensor& y, int64_t& dim) {
  kArgs.check_along(dy, dim);
  kArgs.check_twin("y", y, dy);
}
inline void check(const Tensor& ddx, const Tensor& dy, const Tensor& y, int64_t& dim) {
  check(dy, y, dim);
  kArgs.check_twin("ddx", ddx, dy);
}

}  // namespace fuseline::softmax_backward
