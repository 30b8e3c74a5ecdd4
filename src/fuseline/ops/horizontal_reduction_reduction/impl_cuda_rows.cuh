// Sum and largest element for the kernels of row_cuda.cuh.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"
#include "fuseline/cuda/rows/row_sums.cuh"

namespace fuseline::horizontal_reduction_reduction {

using rows::ArgsOf;
using rows::Packs;

template <typename S>
__device__ __forceinline__ S larger(S a, S b) {
#if __CUDA_ARCH__ >= 800
  if constexpr (sizeof(S) == 4) {
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(a) : "f"(b));
    return a;
  }
#endif
  return a > b || a != a ? a : b;
}

// A sum; the largest, NaN if one is; and, if COUNTS, how many are as large: nothing is NaN's like.
template <typename T, bool COUNTS>
struct alignas(8) SumAndMost {
  static constexpr bool QUICK = false;
  ExactSum<T> sum;
  Stat<T> most;
  int64_t count;
  static __device__ SumAndMost none() {
    return {ExactSum<T>::none(), -static_cast<Stat<T>>(__builtin_huge_val()), 0};
  }
};
template <typename T>
struct alignas(8) SumAndMost<T, false> {
  static constexpr bool QUICK = sizeof(T) < 8;
  ExactSum<T> sum;
  Stat<T> most;
  static __device__ SumAndMost none() {
    return {ExactSum<T>::none(), -static_cast<Stat<T>>(__builtin_huge_val())};
  }
};

// a's largest and count with those of b.
template <typename T, bool COUNTS, typename S>
__device__ __forceinline__ void join(SumAndMost<T, COUNTS>& a, S most, int64_t count) {
  const S both = larger(a.most, most);
  if constexpr (COUNTS) {
    a.count = (a.most == both ? a.count : 0) + (most == both ? count : 0);
  }
  a.most = both;
}

template <typename T, bool COUNTS>
__device__ __forceinline__ SumAndMost<T, COUNTS> plus(SumAndMost<T, COUNTS> a,
                                                      const SumAndMost<T, COUNTS>& b) {
  a.sum = plus(a.sum, b.sum);
  if constexpr (COUNTS) {
    join(a, b.most, b.count);
  } else {
    join(a, b.most, 0);
  }
  return a;
}

template <typename T, bool COUNTS>
__device__ __forceinline__ SumAndMost<T, COUNTS> over_lanes(SumAndMost<T, COUNTS> p, int width,
                                                            int step = 1) {
  p.sum = over_lanes(p.sum, width, step);
  for_lanes(width, step, [&](int offset) {
    int64_t count = 0;
    if constexpr (COUNTS) count = __shfl_xor_sync(kFullMask, p.count, offset);
    join(p, __shfl_xor_sync(kFullMask, p.most, offset), count);
  });
  return p;
}

// Nothing but what is written where a row ends: the sum, the largest and, if COUNTS, how many are
// as large.
template <typename T_, bool COUNTS>
struct Forward : rows::NoEpilogueOperands {
  using T = T_;
  using S = Stat<T>;
  using Total = SumAndMost<T, COUNTS>;
  template <int>
  using Part = Total;
  using Again = Forward;
  using Row = Total;
  static constexpr int INPUTS = 1, ROUNDS = 1, OUTPUTS = 0;
  T *sums, *amax;
  double* counts;

  static __device__ S nothing() { return 0; }
  Again again() const { return *this; }
  __device__ Row begin(const ArgsOf<Forward>&, int64_t) const { return {}; }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row&, Packs<Forward, VEC> (&held)[ITEMS],
                                       const There& there) const {
    Total part = Total::none();
    part.sum = total<ExactSum<T>, T, VEC, ITEMS>([&](int i, int v) { return held[i].v[0].v[v]; });
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (!there(i)) continue;
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if (there(i, v)) part.most = larger(part.most, held[i].v[0].v[v]);
      }
    }
    if constexpr (COUNTS) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (!there(i)) continue;
#pragma unroll
        for (int v = 0; v < VEC; ++v) part.count += there(i, v) && held[i].v[0].v[v] == part.most;
      }
    }
    return part;
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    row = all;
  }
  __device__ void finish(const Row& row, int64_t index) const {
    sums[index] = round_to<T>(static_cast<S>(whole(row.sum)));
    amax[index] = round_to<T>(row.most);
    if constexpr (COUNTS) counts[index] = static_cast<double>(row.count);
  }
};

}  // namespace fuseline::horizontal_reduction_reduction
