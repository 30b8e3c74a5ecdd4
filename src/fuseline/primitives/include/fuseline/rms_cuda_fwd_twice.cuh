// Forward of rows that are read twice, the second time from L1.
#pragma once

#include "fuseline/rms_cuda_fwd.cuh"

namespace fuseline::rms {

// Loads a pack with hints to both caches: it is needed again (KEEP), or for the last time.
template <bool KEEP, typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> load_hinted(const T* p) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(T) * VEC == 16) {
    uint64_t policy;
    uint4 v;
    if constexpr (KEEP) {
      asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
      asm volatile("ld.global.L1::evict_last.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(p), "l"(policy));
    } else {
      asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
      asm volatile("ld.global.L1::evict_first.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                   : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                   : "l"(p), "l"(policy));
    }
    return *reinterpret_cast<const Pack<T, VEC>*>(&v);
  }
#endif
  return load<T, VEC>(p);
}

// Threads that a multiprocessor holds.
#if !defined(__CUDA_ARCH__) || (__CUDA_ARCH__ % 100 == 0 && __CUDA_ARCH__ < 1200)
constexpr int kResidentThreads = 2048;
#else
constexpr int kResidentThreads = __CUDA_ARCH__ < 800 ? 1024 : 1536;
#endif

// A block of THREADS owns a row of at least four packs a thread. 32 registers a thread fill a
// multiprocessor with threads, whose rows and weight L1 holds: more is on its way at a time than
// registers could keep until y is made.
template <typename T, typename W, int THREADS, typename Y>
__global__ void __launch_bounds__(THREADS, kResidentThreads / THREADS)
    fwd_twice_kernel(const __grid_constant__ FwdArgs<T, W, false, Y> a) {
  using S = Stat<T>;
  constexpr int VEC = 16 / sizeof(T), STEP = THREADS * VEC;
  __shared__ __align__(16) S scratch[kWarp];
  __shared__ double scratch2[kWarp];
  const int64_t row = blockIdx.x;
  const int n = static_cast<int>(a.n), first = threadIdx.x * VEC;
  const T* const x = a.x + row * a.x_stride;

  S sum = 0;
  for (int col = first; col < n; col += STEP) sum += square_sum(load_hinted<true, T, VEC>(x + col));
  sum = row_sum<true, THREADS / kWarp>(sum, THREADS, scratch);
  const S square = mean_of(sum, a.count, a.inv_n);
  const S eps = static_cast<S>(a.eps), largest = largest_of(square, eps);
  const bool again = needs_second_look(largest);
  if (second_look<true>(a, row, largest, again, threadIdx.x, THREADS, scratch2)) return;

  const S rstd = inverse_sqrt<T>(square + eps);
  if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
  const auto divide = divisor(a.load_scale());
  Y* const y = a.y + row * a.n;
  for (int col = first; col < n; col += STEP) {
    const Pack<T, VEC> pack = load_hinted<false, T, VEC>(x + col);
    const Pack<W, VEC> weight =
        a.weight ? load_hinted<true, W, VEC>(a.weight + col) : ones<W, VEC>();
    store<Y, VEC>(y + col, normalise<Y>(pack, rstd, weight, a.weight_offset, divide));
  }
}

}  // namespace fuseline::rms
