// Device maths of the root-mean-square norm: packs of up to 16 bytes, conversions, row reductions,
// the second look.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cfloat>
#include <cstdint>
#include <type_traits>

namespace fuseline::rms {

constexpr int kWarp = 32;
constexpr int kSmallBlock = 128;  // threads of a block that holds several rows
constexpr int kMaxBlock = 1024;
constexpr unsigned kFullMask = 0xffffffffu;
constexpr int kPacksAtOnce = 4;  // loads in flight of a thread that walks along a long row

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
  if constexpr (std::is_same_v<T, __half> && std::is_same_v<F, double>) {
    return __double2half(v);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16> && std::is_same_v<F, double>) {
    return __double2bfloat16(v);
  } else {
    return static_cast<T>(v);
  }
}

// Values of a pack in the type of the statistics. Half types convert in pairs: element by element
// the compiler spends two instructions more on each, which bounds the backward kernel.
template <typename S, int VEC>
struct Values {
  S v[VEC];
};

template <typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> plus(Values<S, VEC> a, const Values<S, VEC>& b) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) a.v[v] += b.v[v];
  return a;
}

template <typename S, typename T, int VEC>
__device__ __forceinline__ Values<S, VEC> unpack(const Pack<T, VEC>& p) {
  Values<S, VEC> out;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && VEC % 2 == 0) {
#pragma unroll
    for (int v = 0; v < VEC; v += 2) {
      const unsigned pair = *reinterpret_cast<const unsigned*>(&p.v[v]);
      out.v[v] = __uint_as_float(pair << 16);
      out.v[v + 1] = __uint_as_float(pair & 0xffff0000u);
    }
  } else if constexpr (std::is_same_v<T, __half> && VEC % 2 == 0) {
#pragma unroll
    for (int v = 0; v < VEC; v += 2) {
      const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&p.v[v]));
      out.v[v] = pair.x;
      out.v[v + 1] = pair.y;
    }
  } else {
#pragma unroll
    for (int v = 0; v < VEC; ++v) out.v[v] = static_cast<S>(to_stat(p.v[v]));
  }
  return out;
}

// The same of a weight, with what is added to it.
template <typename S, typename W, int VEC>
__device__ __forceinline__ Values<S, VEC> unpack(const Pack<W, VEC>& weight, S offset) {
  Values<S, VEC> out = unpack<S>(weight);
#pragma unroll
  for (int v = 0; v < VEC; ++v) out.v[v] += offset;
  return out;
}

template <typename T, typename S, int VEC>
__device__ __forceinline__ Pack<T, VEC> pack(const Values<S, VEC>& in) {
  Pack<T, VEC> p;
  if constexpr (std::is_same_v<T, __nv_bfloat16> && VEC % 2 == 0) {
#pragma unroll
    for (int v = 0; v < VEC; v += 2) {
      *reinterpret_cast<__nv_bfloat162*>(&p.v[v]) = __floats2bfloat162_rn(in.v[v], in.v[v + 1]);
    }
  } else if constexpr (std::is_same_v<T, __half> && VEC % 2 == 0) {
#pragma unroll
    for (int v = 0; v < VEC; v += 2) {
      *reinterpret_cast<__half2*>(&p.v[v]) = __floats2half2_rn(in.v[v], in.v[v + 1]);
    }
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3> && VEC % 2 == 0) {
#pragma unroll
    for (int v = 0; v < VEC; v += 2) {
      *reinterpret_cast<__nv_fp8x2_storage_t*>(&p.v[v]) =
          __nv_cvt_float2_to_fp8x2(make_float2(in.v[v], in.v[v + 1]), __NV_SATFINITE, __NV_E4M3);
    }
  } else {
#pragma unroll
    for (int v = 0; v < VEC; ++v) p.v[v] = round_to<T, S>(in.v[v]);
  }
  return p;
}

// a + b, rounded to T.
template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> sum_of(const Pack<T, VEC>& a, const Pack<T, VEC>& b) {
  return pack<T>(plus(unpack<Stat<T>>(a), unpack<Stat<T>>(b)));
}

template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> load(const T* p) {
  return *reinterpret_cast<const Pack<T, VEC>*>(p);
}
template <typename T, int VEC>
__device__ __forceinline__ void store(T* p, const Pack<T, VEC>& pack) {
  *reinterpret_cast<Pack<T, VEC>*>(p) = pack;
}

// What stands for an absent weight.
template <typename W, int VEC>
__device__ __forceinline__ Pack<W, VEC> ones() {
  Pack<W, VEC> p;
#pragma unroll
  for (int v = 0; v < VEC; ++v) p.v[v] = static_cast<W>(1.0f);
  return p;
}

// A thread's packs of the weight, `step` columns apart from `first` on: ones where there is none.
// Those behind n are not set. One branch for all: a choice for each pack is one for each element.
template <typename W, int VEC, int ITEMS>
__device__ __forceinline__ void load_weight(const W* weight, int first, int step, int n,
                                            Pack<W, VEC> (&packs)[ITEMS]) {
  if (weight) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (first + i * step < n) packs[i] = load<W, VEC>(weight + first + i * step);
    }
  } else {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) packs[i] = ones<W, VEC>();
  }
}

// sum / n, where inv_n is 1 / n rounded: one step of Newton's, which saves the slow division but
// would make NaN of Inf.
template <typename S>
__device__ __forceinline__ S mean_of(S sum, S n, S inv_n) {
  const S mean = sum * inv_n;
  const S better = fma(fma(-mean, n, sum), inv_n, mean);
  return isfinite(mean) ? better : mean;
}

// 1 / sqrt(v) for rows of T; rounded correctly for fp32, whose results show each unit in the last
// place.
template <typename T>
__device__ __forceinline__ Stat<T> inverse_sqrt(Stat<T> v) {
  if constexpr (std::is_same_v<T, double>) return rsqrt(v);
  if constexpr (std::is_same_v<T, float>) return __frsqrt_rn(v);
  return rsqrtf(v);
}

// Sum over the `width` (a power of two, at most a warp) neighbouring lanes of one row.
template <typename S>
__device__ __forceinline__ S lanes_sum(S v, int width) {
  for (int offset = width / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(kFullMask, v, offset);
  return v;
}

// Sum over the `row_threads` threads of each row of the block; every one of them gets it, in an
// order that depends on their number alone. A row of several warps (MULTI_WARP; it has the block to
// itself) goes through `scratch`, one value a warp, which the caller alternates between calls so
// that one barrier a call is enough. Where a block has few warps each thread adds their
// values up itself, which is sooner done than by five shuffles.
template <bool MULTI_WARP, int MAX_WARPS = kWarp, typename S>
__device__ __forceinline__ S row_sum(S v, int row_threads, S* scratch) {
  if constexpr (!MULTI_WARP) {
    return lanes_sum(v, row_threads);
  } else {
    v = lanes_sum(v, kWarp);
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = row_threads / kWarp;
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    if constexpr (MAX_WARPS <= 8) {
      S sum = scratch[0];
#pragma unroll
      for (int i = 1; i < MAX_WARPS; ++i) sum += i < warps ? scratch[i] : S(0);
      return sum;
    }
    return lanes_sum(lane < warps ? scratch[lane] : S(0), kWarp);
  }
}

// The mean square, or |eps| where that is larger, left the range in which their sum neither
// overflows nor is too small for full precision.
__device__ __forceinline__ bool needs_second_look(float v) {
  return !(v <= FLT_MAX / 2 && v >= 1e-30f);
}
__device__ __forceinline__ bool needs_second_look(double v) {
  return !(v <= DBL_MAX / 2 && v >= 1e-290);
}

// fp64 holds the square of every fp32; an fp64 row is scaled by a power of two instead.
struct SecondLook {
  double scale = 1.0;
  __device__ explicit SecondLook(float) {}
  __device__ explicit SecondLook(double largest) : scale(largest < 1.0 ? 0x1p600 : 0x1p-600) {}
  __device__ double square(double x) const { return (x * scale) * (x * scale); }
};

// What x is multiplied by, in one step where that step is a normal number: the scaled small
// elements of a row may not be.
struct ExactRstd {
  double first, second;
  __device__ ExactRstd(const SecondLook& look, double scaled_mean_square, double eps)
      : first(look.scale),
        second(1.0 / sqrt(scaled_mean_square + (eps * look.scale) * look.scale)) {
    const double rstd = first * second;
    if (rstd >= DBL_MIN && rstd <= DBL_MAX) first = rstd, second = 1.0;
  }
  __device__ double rstd() const { return first * second; }
  __device__ double times(double x) const { return x * first * second; }
};

}  // namespace fuseline::rms
