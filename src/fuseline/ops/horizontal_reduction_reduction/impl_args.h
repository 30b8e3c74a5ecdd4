// What every backend of horizontal_reduction_reduction checks before it touches memory: raw
// torch.ops calls are public.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::horizontal_reduction_reduction {

constexpr NormArgs kArgs{"horizontal_reduction_reduction"};

inline void check(const Tensor& x) {
  kArgs.check_rows(x);
  STD_TORCH_CHECK(x.sizes()[x.dim() - 1] > 0, kArgs.op, ": x has shape ", to_string(x.sizes()),
                  ", expected at least one column");
}

}  // namespace fuseline::horizontal_reduction_reduction
