// Elementary functions of fp32 by one instruction each, and of fp64 by the library.
#pragma once

namespace fuseline {

// 2^v and 1 / v; of fp32 in one instruction, to 2 and 1 ULP, and 0 where that is below 2^-126.
__device__ __forceinline__ double power(double v) { return exp2(v); }
__device__ __forceinline__ double inverse(double v) { return 1 / v; }
__device__ __forceinline__ float power(float v) {
#ifdef __CUDA_ARCH__
  asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
#else
  return exp2(v);
#endif
}
__device__ __forceinline__ float inverse(float v) {
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %0;" : "+f"(v));
  return v;
#else
  return 1 / v;
#endif
}

}  // namespace fuseline
