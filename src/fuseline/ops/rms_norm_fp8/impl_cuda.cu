// The CUDA kernel of the two rms_norm_fp8 operators.
#include "fuseline/core/cpp/fp8_args.h"
#include "fuseline/cuda/norm/rms_cuda.h"

namespace fuseline::rms_norm_fp8 {
namespace {

Tensor rms_norm_fp8(const Tensor& x, std::optional<Tensor> weight, const Tensor& scale,
                    double eps) {
  constexpr Fp8Args args{"rms_norm_fp8"};
  args.check_rows(x);
  args.check_weight(weight, x);
  args.check_scale(scale, x);
  Tensor y = allocate_e4m3(x);
  // -0 is the offset that leaves a weight of -0 alone.
  rms::forward<false, true>(x, nullptr, weight, eps, -0.0, nullptr, y, nullptr, &scale);
  return y;
}

}  // namespace
}  // namespace fuseline::rms_norm_fp8

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("rms_norm_fp8", TORCH_BOX(&fuseline::rms_norm_fp8::rms_norm_fp8));
  m.impl("_rms_norm_fp8", TORCH_BOX(&fuseline::rms_norm_fp8::rms_norm_fp8));
}
