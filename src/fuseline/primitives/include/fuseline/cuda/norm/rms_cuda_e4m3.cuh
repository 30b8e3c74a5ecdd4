// What a y in e4m3 needs besides: division by a scale in memory.
#pragma once

#include "fuseline/cuda/norm/rms_cuda_launch.h"

namespace fuseline::rms {

// v / scale as e4m3 shows it, by fewer instructions than a division: the product with the inverse,
// corrected by the remainder. A power of two brings any scale near 1, so that inverse and remainder
// keep their bits; what it takes from v is what e4m3 rounds to 0 or 448.
class Divisor {
 public:
  using Scale = float;
  Divisor() = default;
  __device__ explicit Divisor(float scale) {
    const int exponent = __float_as_int(scale) >> 23 & 0xff;
    power_ = __int_as_float(max(1, 254 - exponent) << 23);
    scale_ = scale * power_;
    float inverse;  // as __frcp_rn takes it, which branches for the rest
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(scale_));
    inverse_ = corrected(inverse, fmaf(-scale_, inverse, 1.0f), inverse);
  }

  __device__ float operator()(float v) const {
    v *= power_;
    const float product = v * inverse_;
    return corrected(product, fmaf(-product, scale_, v), inverse_);
  }
  __device__ float operator()(double v) const { return (*this)(static_cast<float>(v)); }

 private:
  // One step of Newton's, which makes NaN of what is not finite and loses the sign of 0.
  static __device__ float corrected(float v, float remainder, float inverse) {
    const float better = fmaf(remainder, inverse, v);
    return fabsf(better) > 0.0f ? better : v;
  }

  float power_, scale_, inverse_;
};

struct Undivided {
  struct Scale {};
  Undivided() = default;
  __device__ explicit Undivided(Scale) {}
  template <typename S>
  __device__ S operator()(S v) const {
    return v;
  }
};

template <typename Y>
using DivisorOf = std::conditional_t<std::is_same_v<Y, e4m3>, Divisor, Undivided>;

}  // namespace fuseline::rms
