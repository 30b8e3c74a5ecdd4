// What rows are summed in, for the kernels of row_cuda.cuh: plainly, or so that terms which cancel
// leave what they should.
#pragma once

#include "fuseline/cuda/packs.cuh"

namespace fuseline {

// What a row is summed in. A thread adds many terms of one that is read again (!HELD): terms that
// are alike would add up their roundings.
template <typename T, bool HELD>
using TotalOf = std::conditional_t<HELD, Stat<T>, double>;

template <typename S>
struct alignas(8) Sum {
  static constexpr bool QUICK = true;
  S value;
  static __device__ Sum none() { return {0}; }
};
template <typename S>
__device__ __forceinline__ Sum<S> plus(const Sum<S>& a, const Sum<S>& b) {
  return {a.value + b.value};
}
template <typename S>
__device__ __forceinline__ Sum<S> over_lanes(const Sum<S>& p, int width, int step = 1) {
  return {lanes_sum(p.value, width, step)};
}

// A sum of fp64 and what its additions lost.
struct Compensated {
  static constexpr bool QUICK = false;
  double value, lost;
  static __device__ Compensated none() { return {0, 0}; }
};
__device__ __forceinline__ Compensated plus(const Compensated& a, const Compensated& b) {
  const double sum = a.value + b.value, moved = sum - a.value;
  return {sum, a.lost + b.lost + ((a.value - (sum - moved)) + (b.value - moved))};
}
__device__ __forceinline__ Compensated over_lanes(Compensated p, int width, int step = 1) {
  for_lanes(width, step, [&](int offset) {
    p = plus(p, {__shfl_xor_sync(kFullMask, p.value, offset),
                 __shfl_xor_sync(kFullMask, p.lost, offset)});
  });
  return p;
}

// A sum with what its additions lost, which is NaN where the sum is not finite.
template <typename S>
__device__ __forceinline__ S whole(const Sum<S>& sum) {
  return sum.value;
}
__device__ __forceinline__ double whole(const Compensated& sum) {
  return isfinite(sum.value) ? sum.value + sum.lost : sum.value;
}

// The sum of elements of T to more digits than T has.
template <typename T>
using ExactSum = std::conditional_t<std::is_same_v<T, double>, Compensated, Sum<double>>;

// Of term(pack, element) over a thread's packs, as a Part of elements of T: half types add up in
// fp32, in which so few are exact enough.
template <typename Part, typename T, int VEC, int ITEMS, typename Term>
__device__ __forceinline__ Part total(const Term& term) {
  std::conditional_t<sizeof(T) == 2, Sum<float>, Part> sum = decltype(sum)::none();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    decltype(sum) ends[VEC];  // a pack's terms in pairs: additions of fp64 are long in coming
#pragma unroll
    for (int v = 0; v < VEC; ++v) ends[v] = {term(i, v)};
#pragma unroll
    for (int width = VEC / 2; width > 0; width /= 2) {
#pragma unroll
      for (int v = 0; v < width; ++v) ends[v] = plus(ends[v], ends[v + width]);
    }
    sum = i == 0 ? ends[0] : plus(sum, ends[0]);
  }
  if constexpr (std::is_same_v<decltype(sum), Part>) {
    return sum;
  } else {
    return {sum.value};
  }
}

}  // namespace fuseline
