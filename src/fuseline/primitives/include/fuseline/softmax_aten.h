// The softmaxes as ATen calls them: scalars and half types to float32 are left to ATen, and not
// counted.
#pragma once

#include "fuseline/core/cpp/aten.h"

namespace fuseline::softmax {

// Ours, and those of ATen's two operators.
struct AtenNames {
  const char *op, *fwd, *bwd;
};

inline constexpr AtenNames kSoftmax{"softmax", "_softmax", "_softmax_backward_data"};
inline constexpr AtenNames kLogSoftmax{"log_softmax", "_log_softmax", "_log_softmax_backward_data"};

// The two kernels of one backend, over the backend's own Fwd and Bwd.
template <const AtenNames& kNames, auto Fwd, auto Bwd>
struct Aten {
  inline static std::atomic<int64_t> fwd_calls{0}, bwd_calls{0};

  static Takeover takeover(const char* key) {
    return {kNames.op,
            key,
            {{kNames.fwd, TORCH_BOX(&fwd), &fwd_calls}, {kNames.bwd, TORCH_BOX(&bwd), &bwd_calls}}};
  }

  static Tensor fwd(const Tensor& input, int64_t dim, bool half_to_float) {
    check_dim(input, dim);
    if (!half_to_float && is_ours(input)) {
      Tensor y = Fwd(input, dim);
      fwd_calls.fetch_add(1, std::memory_order_relaxed);
      return y;
    }
    const ScalarType dtype = half_to_float ? ScalarType::Float : input.scalar_type();
    return aten::by_aten(kNames.fwd, "out", dtype, input, dim, half_to_float);
  }

  static Tensor bwd(const Tensor& dy, const Tensor& y, int64_t dim, ScalarType input_dtype) {
    NormArgs{kNames.op, "output"}.check_twin("grad_output", dy, y);
    check_dim(dy, dim);
    const ScalarType dtype = dy.scalar_type();
    if (input_dtype == dtype && is_ours(dy)) {
      Tensor dx = Bwd(dy, y, dim);
      bwd_calls.fetch_add(1, std::memory_order_relaxed);
      return dx;
    }
    const bool to_half = dtype == ScalarType::Float && input_dtype == ScalarType::Half;
    return aten::by_aten(kNames.bwd, "out", to_half ? input_dtype : dtype, dy, y, dim, input_dtype);
  }

 private:
  static void check_dim(const Tensor& t, int64_t dim) {
    const int64_t dims = t.dim() > 0 ? t.dim() : 1;
    STD_TORCH_CHECK(-dims <= dim && dim < dims, kNames.op, ": dim is ", dim, ", expected ", -dims,
                    " to ", dims - 1);
  }

  static bool is_ours(const Tensor& t) { return t.dim() > 0 && is_supported(t.scalar_type()); }
};

}  // namespace fuseline::softmax
