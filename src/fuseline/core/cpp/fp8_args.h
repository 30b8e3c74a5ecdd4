// What norms to e4m3 check before they touch memory (raw torch.ops calls are public), and the
// outputs they allocate.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline {

struct Fp8Args : NormArgs {
  void check_rows(const Tensor& rows) const {
    NormArgs::check_rows(rows);
    STD_TORCH_CHECK(rows.scalar_type() != ScalarType::Double, op, ": ", x,
                    " must be float32, float16 or bfloat16, got Double");
  }

  void check_scale(const Tensor& scale, const Tensor& rows) const {
    check_readable("scale", scale);
    STD_TORCH_CHECK(scale.scalar_type() == ScalarType::Float, op, ": scale must be float32, got ",
                    dtype_of(scale));
    STD_TORCH_CHECK(scale.numel() == 1, op, ": scale has shape ", to_string(scale.sizes()),
                    ", expected one element");
    STD_TORCH_CHECK(device_of(scale) == device_of(rows), op, ": scale is on ",
                    to_string(device_of(scale)), ", ", x, " is on ", to_string(device_of(rows)));
  }

  void check_options(std::optional<int64_t> block, std::optional<double> scale_ub) const {
    constexpr int64_t kLeast = 16, kMost = 1024;
    STD_TORCH_CHECK(!block || (kLeast <= *block && *block <= kMost && !(*block & (*block - 1))), op,
                    ": block is ", block.value_or(0), ", expected a power of two from ", kLeast,
                    " to ", kMost);
    STD_TORCH_CHECK(!scale_ub || *scale_ub > 0, op, ": scale_ub is ", scale_ub.value_or(0),
                    ", expected a number > 0");
  }
};

inline Tensor allocate_e4m3(const Tensor& x) {
  return allocate(x.sizes(), ScalarType::Float8_e4m3fn, device_of(x));
}

// Scales of the blocks of each row, one of a row without blocks.
inline Tensor allocate_scales(const Tensor& x, std::optional<int64_t> block) {
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end());
  shape.back() = block ? (shape.back() + *block - 1) / *block : 1;
  return allocate({shape.data(), shape.size()}, ScalarType::Float, device_of(x));
}

}  // namespace fuseline
