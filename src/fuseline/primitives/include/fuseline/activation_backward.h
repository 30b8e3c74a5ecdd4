// The gradient through an activation that is part of a product: bias_gelu's kernels, without a
// bias.
#pragma once

#include <string>
#include <tuple>

#include "fuseline/core/cpp/tensor.h"

namespace fuseline::bias_gelu {

// dy times the slope at x, and that summed over rows where it is wanted. x is what GELU was of (of:
// "tanh" or "none"), or what ReLU gave ("relu").
std::tuple<Tensor, Tensor> activation_backward(const Tensor& dy, const Tensor& x, std::string of,
                                               bool need_dbias);

}  // namespace fuseline::bias_gelu
