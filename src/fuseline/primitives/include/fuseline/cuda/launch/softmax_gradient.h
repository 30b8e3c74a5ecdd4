// The gradient of the softmax, which two operators have: compiled once, in softmax_gradient.cu.
#pragma once

#include "fuseline/cuda/launch/cuda_rows.h"

namespace fuseline::softmax {

// Writes dx = y * (dy - sum(dy * y)) along a dimension, of tensors that are checked.
void write_gradient(const Tensor& dx, const Tensor& dy, const Tensor& y, int64_t dim);

}  // namespace fuseline::softmax
