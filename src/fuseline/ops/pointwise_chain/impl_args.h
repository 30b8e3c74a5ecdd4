// What every backend of pointwise_chain checks before it touches memory: raw torch.ops calls are
// public.
#pragma once

#include "fuseline/core/cpp/layout.h"

namespace fuseline::pointwise_chain {

constexpr NormArgs kArgs{"pointwise_chain"};

}  // namespace fuseline::pointwise_chain
