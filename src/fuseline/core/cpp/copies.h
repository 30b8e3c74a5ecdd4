// Copies between tensors of one shape and dtype whose elements lie in different orders.
#pragma once

#include "tensor.h"

namespace fuseline {

// Copies on the CPU: false leaves it to torch (primitives/copies.cpp).
bool copied_on_cpu(Tensor& to, const Tensor& from);

}  // namespace fuseline
