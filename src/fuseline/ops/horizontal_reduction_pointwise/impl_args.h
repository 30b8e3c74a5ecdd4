// What every backend of horizontal_reduction_pointwise checks before it touches memory: raw
// torch.ops calls are public.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::horizontal_reduction_pointwise {

constexpr NormArgs kArgs{"horizontal_reduction_pointwise"};

}  // namespace fuseline::horizontal_reduction_pointwise
