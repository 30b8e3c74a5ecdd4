// What every backend of bias_dropout_add checks before it touches memory (raw torch.ops calls are
// public), and the dropout that the arguments ask for.
#pragma once

#include "fuseline/core/cpp/norm_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::bias_dropout_add {

constexpr NormArgs kArgs{"bias_dropout_add"};

inline void check(const Tensor& x, const Tensor& bias, const Tensor& residual) {
  kArgs.check_rows(x);
  kArgs.check_twin("residual", residual, x);
  kArgs.check_broadcast("bias", bias, x);
  kArgs.check_kind("bias", bias, x);
}

// What is drawn for each element: it is dropped if its number is below the threshold, else scaled.
// The seed is one of the two; of a tensor, which lies on the CPU here, the one element.
inline Dropout dropout(double p, std::optional<int64_t> seed, const std::optional<Tensor>& tensor) {
  if (tensor) {
    const bool fits = is_strided(*tensor) && has_memory(*tensor) && tensor->dim() == 0 &&
                      tensor->is_cpu() && tensor->scalar_type() == ScalarType::Long;
    STD_TORCH_CHECK(fits, "bias_dropout_add: seed_tensor is another tensor, expected one of int64 ",
                    "with shape () on the CPU");
    seed = *static_cast<const int64_t*>(tensor->const_data_ptr());
  }
  STD_TORCH_CHECK(seed, "bias_dropout_add: seed is None, expected a number in training");
  STD_TORCH_CHECK(p >= 0 && p <= 1, "bias_dropout_add: p is ", p, ", expected 0 <= p <= 1");
  const double threshold = p * 0x1p32;
  return {static_cast<uint64_t>(*seed),
          threshold < 0x1p32 ? static_cast<uint32_t>(threshold) : ~uint32_t{0},
          p < 1 ? 1 / (1 - p) : 0};
}

}  // namespace fuseline::bias_dropout_add
