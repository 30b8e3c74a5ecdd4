// The CPU kernel of the two rms_norm_fp8 operators, with what it checks before it touches memory:
// raw torch.ops calls are public.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/core/cpp/norm_args.h"
#include "fuseline/rms_cpu.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::rms_norm_fp8 {
namespace {

const rms::Kernels& kernels() {
#ifdef __x86_64__
  if (isa() == Isa::avx512) return kernels_avx512;
  if (isa() == Isa::avx2) return kernels_avx2;
#endif
  return kernels_default;
}

void check(const Tensor& x, std::optional<Tensor>& weight, const Tensor& scale) {
  constexpr NormArgs args{"rms_norm_fp8"};
  args.check_rows(x);
  STD_TORCH_CHECK(x.scalar_type() != ScalarType::Double,
                  "rms_norm_fp8: x must be float32, float16 or bfloat16");
  args.check_weight(weight, x);
  STD_TORCH_CHECK(is_strided(scale) && scale.scalar_type() == ScalarType::Float,
                  "rms_norm_fp8: scale must be a dense strided float32 tensor");
  STD_TORCH_CHECK(scale.numel() == 1, "rms_norm_fp8: scale has shape ", to_string(scale.sizes()),
                  ", expected one element");
  STD_TORCH_CHECK(device_of(scale) == device_of(x), "rms_norm_fp8: scale is on ",
                  to_string(device_of(scale)), ", x is on ", to_string(device_of(x)));
}

Tensor rms_norm_fp8(const Tensor& x, std::optional<Tensor> weight, const Tensor& scale,
                    double eps) {
  check(x, weight, scale);
  Tensor y = allocate(x.sizes(), ScalarType::Float8_e4m3fn, device_of(x));
  const float divisor = *static_cast<const float*>(scale.const_data_ptr());
  rms::forward(kernels(), x, nullptr, weight, eps, nullptr, y, nullptr, 0, divisor);
  return y;
}

}  // namespace
}  // namespace fuseline::rms_norm_fp8

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("rms_norm_fp8", TORCH_BOX(&fuseline::rms_norm_fp8::rms_norm_fp8));
  m.impl("_rms_norm_fp8", TORCH_BOX(&fuseline::rms_norm_fp8::rms_norm_fp8));
}
