// What every backend of norm_chain checks before it touches memory (raw torch.ops calls are
// public), and the outputs it allocates.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::norm_chain {

constexpr NormArgs kArgs{"norm_chain"};

// `sum` comes back contiguous.
inline void check(const Tensor& dy, const Tensor& x, Tensor& sum) {
  kArgs.check_rows(x);
  kArgs.check_twin("dy", dy, x);
  kArgs.check_one_a_row("sum", sum, x, ScalarType::Double);
  sum = counted_contiguous(sum);
}

inline Tensor allocate_sum(const Tensor& x) { return allocate_one_a_row(x, ScalarType::Double); }

}  // namespace fuseline::norm_chain
