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

// What has one element a row comes back contiguous.
inline void check_bwd(Tensor& dsum, Tensor& damax, const Tensor& x, Tensor& amax, Tensor& count) {
  check(x);
  kArgs.check_one_a_row("dsum", dsum, x, x.scalar_type());
  kArgs.check_one_a_row("damax", damax, x, x.scalar_type());
  kArgs.check_one_a_row("amax", amax, x, x.scalar_type());
  kArgs.check_one_a_row("count", count, x, ScalarType::Double);
}

}  // namespace fuseline::horizontal_reduction_reduction
