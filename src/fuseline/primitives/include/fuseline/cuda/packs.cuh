// Device maths of operators on rows: packs of up to 16 bytes, conversions, sums over a row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

namespace fuseline {

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

template <int VEC, typename T>
__device__ __forceinline__ Pack<T, VEC> filled(T with) {
  Pack<T, VEC> p;
#pragma unroll
  for (int v = 0; v < VEC; ++v) p.v[v] = with;
  return p;
}

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
  } else if constexpr (std::is_same_v<T, __nv_fp8_e4m3> && VEC % 4 == 0) {
    const auto two = [&](int v) -> unsigned {
      return __nv_cvt_float2_to_fp8x2(make_float2(in.v[v], in.v[v + 1]), __NV_SATFINITE, __NV_E4M3);
    };
#pragma unroll
    for (int v = 0; v < VEC; v += 4) {  // a word, or the compiler takes the pairs apart again
      *reinterpret_cast<unsigned*>(&p.v[v]) = two(v) | two(v + 2) << 16;
    }
  } else {
#pragma unroll
    for (int v = 0; v < VEC; ++v) p.v[v] = round_to<T, S>(in.v[v]);
  }
  return p;
}

template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> load(const T* p) {
  return *reinterpret_cast<const Pack<T, VEC>*>(p);
}
// A pack's bits as one word, or as elements where no word is as large.
template <typename P>
struct WordOf {
  using type = std::conditional_t<
      sizeof(P) == 16, uint4,
      std::conditional_t<
          sizeof(P) == 8, uint2,
          std::conditional_t<sizeof(P) == 4, unsigned,
                             std::conditional_t<sizeof(P) == 2, unsigned short, P>>>>;
};
// As a word: of a struct's elements the compiler makes seven stores now and then
// (docs/decisions/logs/0017-one-row-engine-measurements.md).
template <typename T, int VEC>
__device__ __forceinline__ void store(T* p, const Pack<T, VEC>& pack) {
  using Word = typename WordOf<Pack<T, VEC>>::type;
  *reinterpret_cast<Word*>(p) = *reinterpret_cast<const Word*>(&pack);
}

// L2's policy for what it is to let go of last, as bulk copies and `retained` give it.
constexpr uint64_t kEvictLast = 0x14f0000000000000;

// p, what is read through which L2 lets go of last. What is written then leaves it sooner, and
// memory gives 1 to 5 % more to kernels that read and write
// (docs/decisions/logs/0005-fusion-measurements.md). Not for sm_100 and later: nvcc 13.0 crashes at
// a load of 32 bytes through such a pointer, which it makes there.
template <typename T>
__device__ __forceinline__ const T* retained(const T* p) {
#if __CUDA_ARCH__ >= 800 && __CUDA_ARCH__ < 1000
  return static_cast<const T*>(__nv_associate_access_property(p, kEvictLast));
#else
  return p;
#endif
}

// Threads that a multiprocessor holds.
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ % 100 == 0 && __CUDA_ARCH__ < 1200)
constexpr int kResidentThreads = 2048;
#else
constexpr int kResidentThreads = __CUDA_ARCH__ < 800 ? 1024 : 1536;
#endif

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

// 1 / sqrt(v) for rows of T; rounded correctly for fp32, whose results show each unit in the last
// place.
template <typename T>
__device__ __forceinline__ Stat<T> inverse_sqrt(Stat<T> v) {
  if constexpr (std::is_same_v<T, double>) return rsqrt(v);
  if constexpr (std::is_same_v<T, float>) return __frsqrt_rn(v);
  return rsqrtf(v);
}

// Calls f with the distances at which the `width` (a power of two, at most a warp) lanes of one row
// meet, which are neighbours or `step` (another) apart. No loop: of one with a known width of two
// the compiler makes a table of jumps.
template <int OFFSET = kWarp / 2, typename F>
__device__ __forceinline__ void for_lanes(int width, int step, const F& f) {
  if (OFFSET < width * step && OFFSET >= step) f(OFFSET);
  if constexpr (OFFSET > 1) for_lanes<OFFSET / 2>(width, step, f);
}

template <typename S>
__device__ __forceinline__ S lanes_sum(S v, int width, int step = 1) {
  for_lanes(width, step, [&](int offset) { v += __shfl_xor_sync(kFullMask, v, offset); });
  return v;
}

__device__ __forceinline__ double over_lanes(double v, int width) { return lanes_sum(v, width); }

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

}  // namespace fuseline
