// What every backend of bias_gelu checks before it touches memory: raw torch.ops calls are public.
#pragma once

#include "fuseline/core/cpp/layout.h"

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

// A tensor as rows of neighbours in memory, of which each has a bias of its own, that of
// row % biases, or, without `biases`, each column has one. Owns the copy where there are none.
struct Lines {
  Tensor tensor;
  int64_t rows, n, stride;
  int64_t biases = 0;
  const void* data() const { return tensor.const_data_ptr(); }
};

// Rows and lines of fewer elements are joined: a kernel's step over a row takes a vector or less.
constexpr int64_t kFew = 16;

// `t` in the layout of `like`, which is of its shape. Rows of few elements follow each other.
inline Lines lines_of(const Tensor& t, const Tensor& like) {
  if (like.is_contiguous() || !is_dense(like)) {
    const bool few = t.sizes()[t.dim() - 1] < kFew;
    const Rows rows = rows_of(few ? counted_contiguous(t) : t);
    return {rows.tensor, rows.rows, rows.n, rows.stride};
  }
  const Tensor dense = counted_as(t, like);
  const int64_t last = t.dim() - 1, n = t.sizes()[last], step = like.strides()[last];
  const bool along = n == 1 || step == 1;
  const int64_t length = along ? n : step;
  return {dense, t.numel() / length, length, length, along ? 0 : n};
}

// Each empty if not requested.
struct Gradients {
  Tensor dx, dbias;

  Gradients(const Tensor& x, int64_t biases, bool need_dx, bool need_dbias)
      : dx(need_dx ? allocate_as(x) : allocate_none(x)),
        dbias(need_dbias ? allocate({&biases, 1}, x.scalar_type(), device_of(x))
                         : allocate_none(x)) {}
};

inline bool is_tanh(const std::string& approximate) {
  STD_TORCH_CHECK(approximate == "tanh" || approximate == "none", "bias_gelu: approximate is '",
                  approximate, "', expected 'tanh' or 'none'");
  return approximate == "tanh";
}

}  // namespace fuseline::bias_gelu
