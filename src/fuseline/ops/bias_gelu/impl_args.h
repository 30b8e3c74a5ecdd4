// What every backend of bias_gelu checks before it touches memory: raw torch.ops calls are public.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::bias_gelu {

constexpr NormArgs kArgs{"bias_gelu"};

// `bias` comes back contiguous.
inline void check(const Tensor& x, Tensor& bias) {
  kArgs.check_rows(x);
  kArgs.check_kind("bias", bias, x);
  const int64_t n = x.sizes()[x.dim() - 1];
  STD_TORCH_CHECK(bias.dim() == 1 && bias.sizes()[0] == n, "bias_gelu: bias has shape ",
                  to_string(bias.sizes()), ", expected [", n, "], the last dimension of x");
  bias = counted_contiguous(bias);
}

inline void check(const Tensor& dy, const Tensor& x, Tensor& bias) {
  check(x, bias);
  kArgs.check_twin("dy", dy, x);
}

// Each empty if not requested.
struct Gradients {
  Tensor dx, dbias;

  Gradients(const Tensor& x, const Tensor& bias, bool need_dx, bool need_dbias)
      : dx(need_dx ? allocate_like(x) : allocate_none(x)),
        dbias(need_dbias ? allocate_like(bias) : allocate_none(x)) {}
};

inline bool is_tanh(const std::string& approximate) {
  STD_TORCH_CHECK(approximate == "tanh" || approximate == "none", "bias_gelu: approximate is '",
                  approximate, "', expected 'tanh' or 'none'");
  return approximate == "tanh";
}

}  // namespace fuseline::bias_gelu
