// Cosines and sines of a pack. The library's, but that what is far from 0 is a call of its own: it
// is rare, and its code for each element of a row would not fit the cache of instructions.
#pragma once

#include "fuseline/cuda/packs.cuh"

namespace fuseline {

static __device__ __noinline__ float far_cos(float x) { return cosf(x); }
static __device__ __noinline__ float far_sin(float x) { return sinf(x); }

// From here on the reductions below have no digits to spare.
template <typename T>
constexpr float kFarAngle = sizeof(T) == 2 ? 65536.0f : 105615.0f;

// sin(x + turns * pi / 2) to 1.6 ulp, |x| < kFarAngle; Cephes' polynomials.
__device__ __forceinline__ float near_sin(float x, int turns) {
  constexpr float kInteger =
      12582912.0f;  // 1.5 * 2^23: leaves the nearest integer in the last bits
  const float shifted = fmaf(x, 0.636619772f, kInteger), n = shifted - kInteger;
  float r = fmaf(n, -1.57079601e+00f, x);
  r = fmaf(n, -3.13916473e-07f, r);
  r = fmaf(n, -5.39030253e-15f, r);
  const float z = r * r;
  const int quarter = __float_as_int(shifted) + turns;
  float cosine =
      fmaf(z, fmaf(z, 2.443315711809948e-5f, -1.388731625493765e-3f), 4.166664568298827e-2f);
  cosine = fmaf(z, fmaf(z, cosine, -0.5f), 1.0f);
  float sine = fmaf(z, fmaf(z, -1.9515295891e-4f, 8.3321608736e-3f), -1.6666654611e-1f);
  sine = fmaf(z * r, sine, r);
  const float result = quarter & 1 ? cosine : sine;
  return __int_as_float(__float_as_int(result) ^ (quarter & 2) << 30);
}

template <typename V>
struct CosSin {
  V cos, sin;
};

// The same for half types: relative error of the cosine 2e-6, absolute of the sine 1e-5.
// x = (n + 1/2) * pi - r with |r| <= pi / 2; minimax polynomials of our own.
__device__ __forceinline__ CosSin<float> short_cos_sin(float x) {
  constexpr float kInteger = 12582912.0f;
  const float shifted = fmaf(x, 0.318309886f, -0.5f) + kInteger, n = shifted - kInteger + 0.5f;
  float r = fmaf(n, 3.14159274f, -x);
  r = fmaf(n, -8.742278e-08f, r);
  const float z = r * r;
  const float cosine = fmaf(z, fmaf(z, -0.0012753167f, 0.04150582f), -0.49993488f);
  const float sine = fmaf(z, fmaf(z, -0.00018537046f, 0.00831412f), -0.16665843f);
  const int sign = __float_as_int(shifted) << 31;
  return {__int_as_float(__float_as_int(fmaf(r * z, sine, r)) ^ sign),
          __int_as_float(__float_as_int(fmaf(z, cosine, 1.0f)) ^ sign)};
}

// The cosines and sines of elements that came from memory as T; only those that are wanted.
template <bool COS, bool SIN, typename T, typename S, int VEC>
__device__ __forceinline__ CosSin<Values<S, VEC>> cos_sin(const Values<S, VEC>& x) {
  CosSin<Values<S, VEC>> y{};
  bool far = false;
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    if constexpr (std::is_same_v<T, double>) {
      if (COS) y.cos.v[v] = cos(x.v[v]);
      if (SIN) y.sin.v[v] = sin(x.v[v]);
    } else if constexpr (sizeof(T) == 2) {
      const auto both = short_cos_sin(x.v[v]);
      y.cos.v[v] = both.cos;
      y.sin.v[v] = both.sin;
    } else {
      y.cos.v[v] = near_sin(x.v[v], 1);
      y.sin.v[v] = near_sin(x.v[v], 0);
    }
    far = far || !(fabs(x.v[v]) < S(kFarAngle<T>));
  }
  if constexpr (!std::is_same_v<T, double>) {
    if (far) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if (fabsf(x.v[v]) < kFarAngle<T>) continue;
        if (COS) y.cos.v[v] = far_cos(x.v[v]);
        if (SIN) y.sin.v[v] = far_sin(x.v[v]);
      }
    }
  }
  return y;
}

}  // namespace fuseline
