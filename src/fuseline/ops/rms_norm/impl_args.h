// What both backends of rms_norm check before they touch memory: raw torch.ops calls are public.
#pragma once

#include <tuple>

#include "fuseline/core/cpp/tensor.h"

namespace fuseline::rms_norm {

// The dtype of the statistics (and of rstd): fp64 for fp64, else fp32.
inline ScalarType stat_dtype(ScalarType x) {
  return x == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline bool is_supported(ScalarType t) {
  return t == ScalarType::Double || t == ScalarType::Float || t == ScalarType::Half ||
         t == ScalarType::BFloat16;
}

inline bool same_sizes(IntHeaderOnlyArrayRef a, IntHeaderOnlyArrayRef b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

// Refuses what the kernels cannot read; `weight` comes back contiguous.
inline void check_x_weight(const Tensor& x, std::optional<Tensor>& weight) {
  STD_TORCH_CHECK(is_strided(x), "rms_norm: x must be a dense strided tensor");
  STD_TORCH_CHECK(x.dim() >= 1, "rms_norm: x must have at least one dimension, got a scalar");
  STD_TORCH_CHECK(is_supported(x.scalar_type()),
                  "rms_norm: x must be float64, float32, float16 or bfloat16");
  if (!weight) return;
  const int64_t n = x.sizes()[x.dim() - 1];
  STD_TORCH_CHECK(is_strided(*weight), "rms_norm: weight must be a dense strided tensor");
  STD_TORCH_CHECK(weight->dim() == 1 && weight->sizes()[0] == n, "rms_norm: weight has shape ",
                  to_string(weight->sizes()), ", expected [", n, "], the last dimension of x");
  STD_TORCH_CHECK(
      weight->scalar_type() == x.scalar_type() || weight->scalar_type() == ScalarType::Float,
      "rms_norm: weight must have the dtype of x or float32");
  STD_TORCH_CHECK(device_of(*weight) == device_of(x), "rms_norm: weight is on ",
                  to_string(device_of(*weight)), ", x is on ", to_string(device_of(x)));
  weight = counted_contiguous(*weight);
}

// Whether `rstd` has the sizes of x but the last, and perhaps ones after them.
inline bool has_one_a_row(IntHeaderOnlyArrayRef rstd, IntHeaderOnlyArrayRef x) {
  const size_t rows = x.size() - 1;
  if (rstd.size() < rows) return false;
  for (size_t d = 0; d < rstd.size(); ++d) {
    if (rstd[d] != (d < rows ? x[d] : 1)) return false;
  }
  return true;
}

inline void check_dy_rstd(const Tensor& dy, const Tensor& x, Tensor& rstd) {
  STD_TORCH_CHECK(is_strided(dy) && is_strided(rstd), "rms_norm: dy and rstd must be dense");
  STD_TORCH_CHECK(same_sizes(dy.sizes(), x.sizes()), "rms_norm: dy has shape ",
                  to_string(dy.sizes()), ", expected that of x, ", to_string(x.sizes()));
  STD_TORCH_CHECK(dy.scalar_type() == x.scalar_type(), "rms_norm: dy must have the dtype of x");
  STD_TORCH_CHECK(has_one_a_row(rstd.sizes(), x.sizes()), "rms_norm: rstd has shape ",
                  to_string(rstd.sizes()), ", expected that of x without its last dimension");
  STD_TORCH_CHECK(rstd.scalar_type() == stat_dtype(x.scalar_type()),
                  "rms_norm: rstd must be float32, or float64 for a float64 x");
  STD_TORCH_CHECK(device_of(dy) == device_of(x) && device_of(rstd) == device_of(x),
                  "rms_norm: dy is on ", to_string(device_of(dy)), ", rstd on ",
                  to_string(device_of(rstd)), ", x on ", to_string(device_of(x)));
  rstd = counted_contiguous(rstd);
}

inline Tensor allocate_like(const Tensor& x) {
  return allocate(x.sizes(), x.scalar_type(), device_of(x));
}

// One a row, with so many ones after the rows' own dimensions: ATen's rstd has them.
inline Tensor allocate_rstd(const Tensor& x, size_t ones) {
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end() - 1);
  shape.resize(shape.size() + ones, 1);
  return allocate({shape.data(), shape.size()}, stat_dtype(x.scalar_type()), device_of(x));
}

// The stand-in for a gradient that was not asked for.
inline Tensor allocate_none(const Tensor& x) {
  const int64_t zero = 0;
  return allocate(IntHeaderOnlyArrayRef(&zero, 1), x.scalar_type(), device_of(x));
}

}  // namespace fuseline::rms_norm
