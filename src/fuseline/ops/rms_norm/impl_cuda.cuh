// Device maths of rms_norm: packs of up to 16 bytes, conversions, row reductions, the second look.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <cstdint>

namespace fuseline::rms_norm {

constexpr int kWarp = 32;
constexpr int kSmallBlock = 128;  // threads of a block that holds several rows
constexpr int kMaxBlock = 1024;
constexpr unsigned kFullMask = 0xffffffffu;

template <typename T>
struct StatOf {
  using type = float;
};
template <>
struct StatOf<double> {
  using type = double;
};
template <typename T>
using Stat = typename StatOf<T>::type;

template <typename T, int VEC>
struct alignas(sizeof(T) * VEC < 16 ? sizeof(T) * VEC : 16) Pack {
  T v[VEC];
};

template <typename T>
__device__ __forceinline__ Stat<T> to_stat(T v) {
  return static_cast<Stat<T>>(v);
}
template <typename T, typename F>
__device__ __forceinline__ T round_to(F v) {
  return static_cast<T>(v);
}
template <>
__device__ __forceinline__ __half round_to<__half, float>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 round_to<__nv_bfloat16, float>(float v) {
  return __float2bfloat16_rn(v);
}
template <>
__device__ __forceinline__ __half round_to<__half, double>(double v) {
  return __double2half(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 round_to<__nv_bfloat16, double>(double v) {
  return __double2bfloat16(v);
}

template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> load(const T* p) {
  return *reinterpret_cast<const Pack<T, VEC>*>(p);
}
template <typename T, int VEC>
__device__ __forceinline__ void store(T* p, const Pack<T, VEC>& pack) {
  *reinterpret_cast<Pack<T, VEC>*>(p) = pack;
}

// Sum over the `width` (a power of two, at most a warp) neighbouring lanes of one row.
template <typename S>
__device__ __forceinline__ S lanes_sum(S v, int width) {
  for (int offset = width / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}

// Sum over the threads of one row; every one of them gets it, in an order that depends on their
// number alone. ROW_IS_BLOCK: the row has the whole block and `scratch` (one value a warp), which
// the caller alternates between calls so that one barrier a call is enough.
template <bool ROW_IS_BLOCK, typename S>
__device__ __forceinline__ S row_sum(S v, int width, S* scratch) {
  if constexpr (!ROW_IS_BLOCK) {
    return lanes_sum(v, width);
  } else {
    v = lanes_sum(v, kWarp);
    const int warps = blockDim.x / kWarp;
    if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = v;
    __syncthreads();
    const int lane = threadIdx.x % kWarp;
    return lanes_sum(lane < warps ? scratch[lane] : S(0), kWarp);
  }
}

// The mean square left the normal range (overflow, or too small for full precision).
__device__ __forceinline__ bool needs_second_look(float v) { return !(v <= FLT_MAX && v >= 1e-30f); }
__device__ __forceinline__ bool needs_second_look(double v) {
  return !(v <= DBL_MAX && v >= 1e-290);
}

// fp64 holds the square of every fp32; an fp64 row is scaled by a power of two instead.
struct SecondLook {
  double scale = 1.0;
  __device__ SecondLook(float, double) {}
  __device__ SecondLook(double v, double) : scale(v < 1.0 ? 0x1p600 : 0x1p-600) {}
  __device__ double square(double x) const { return (x * scale) * (x * scale); }
  __device__ double rstd(double mean_square, double eps) const {
    return scale / sqrt(mean_square + (eps * scale) * scale);
  }
};

}  // namespace fuseline::rms_norm
