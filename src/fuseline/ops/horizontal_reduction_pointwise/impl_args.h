// What every backend of horizontal_reduction_pointwise checks before it touches memory: raw
// torch.ops calls are public.
#pragma once

#include "fuseline/core/cpp/layout.h"

namespace fuseline::horizontal_reduction_pointwise {

constexpr NormArgs kArgs{"horizontal_reduction_pointwise"};

inline void check_bwd(const Tensor& dsum, const Tensor& dcos, const Tensor& x) {
  kArgs.check_rows(x);
  kArgs.check_one_a_row("dsum", dsum, x, x.scalar_type());
  kArgs.check_twin("dcos", dcos, x);
}

}  // namespace fuseline::horizontal_reduction_pointwise
