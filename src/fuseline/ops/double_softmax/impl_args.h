// What every backend of double_softmax checks before it touches memory (raw torch.ops calls are
// public), and the statistics it allocates.
#pragma once

#include <vector>

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::double_softmax {

constexpr NormArgs kArgs{"double_softmax"};

// `dim` comes back counted from the first.
inline void check(const Tensor& x, int64_t& dim) { kArgs.check_along(x, dim); }

// max(x) and the inverses of the two sums: x's sizes but that of dim, and 3.
inline std::vector<int64_t> stats_sizes(const Tensor& x, int64_t dim) {
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes.erase(sizes.begin() + dim);
  sizes.push_back(3);
  return sizes;
}

inline Tensor allocate_stats(const Tensor& x, int64_t dim) {
  const auto sizes = stats_sizes(x, dim);
  return allocate({sizes.data(), sizes.size()}, stat_dtype(x.scalar_type()), device_of(x));
}

// `stats` comes back contiguous.
inline void check_bwd(const Tensor& dy, const Tensor& x, Tensor& stats, int64_t& dim) {
  kArgs.check_along(x, dim);
  kArgs.check_twin("dy", dy, x);
  const auto sizes = stats_sizes(x, dim);
  const IntHeaderOnlyArrayRef expected(sizes.data(), sizes.size());
  kArgs.check_readable("stats", stats);
  STD_TORCH_CHECK(stats.scalar_type() == stat_dtype(x.scalar_type()),
                  "double_softmax: stats must be float32, or float64 for a float64 x, got ",
                  dtype_of(stats));
  STD_TORCH_CHECK(same_sizes(stats.sizes(), expected), "double_softmax: stats has shape ",
                  to_string(stats.sizes()), ", expected ", to_string(expected));
  STD_TORCH_CHECK(device_of(stats) == device_of(x), "double_softmax: stats is on ",
                  to_string(device_of(stats)), ", x is on ", to_string(device_of(x)));
  stats = counted_contiguous(stats);
}

}  // namespace fuseline::double_softmax
