// What every backend of norm_chain checks before it touches memory (raw torch.ops calls are
// public), and the outputs it allocates.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::norm_chain {

constexpr NormArgs kArgs{"norm_chain"};

// The sizes of x but the last.
inline IntHeaderOnlyArrayRef rows_sizes(const Tensor& x) {
  return {x.sizes().data(), x.sizes().size() - 1};
}

// `sum` comes back contiguous.
inline void check(const Tensor& dy, const Tensor& x, Tensor& sum) {
  kArgs.check_rows(x);
  kArgs.check_twin("dy", dy, x);
  STD_TORCH_CHECK(is_strided(sum) && sum.scalar_type() == ScalarType::Double,
                  "norm_chain: sum must be a dense strided float64 tensor");
  STD_TORCH_CHECK(same_sizes(sum.sizes(), rows_sizes(x)), "norm_chain: sum has shape ",
                  to_string(sum.sizes()), ", expected that of x without its last dimension");
  STD_TORCH_CHECK(device_of(sum) == device_of(x), "norm_chain: sum is on ",
                  to_string(device_of(sum)), ", x is on ", to_string(device_of(x)));
  sum = counted_contiguous(sum);
}

inline Tensor allocate_sum(const Tensor& x) {
  return allocate(rows_sizes(x), ScalarType::Double, device_of(x));
}

}  // namespace fuseline::norm_chain
