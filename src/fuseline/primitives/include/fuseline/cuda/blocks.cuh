// What launches have in common: sizes of blocks, attributes, alignment, divisions of places.
#pragma once

#include <algorithm>
#include <atomic>

#include "fuseline/cuda/packs.cuh"

namespace fuseline {

// Exact division of numbers below 2^31, in few instructions: a block's start waits for several.
struct Divider {
  unsigned by, factor, shift;

  // n becomes the quotient.
  __device__ __forceinline__ unsigned rest(unsigned& n) const {
    const unsigned quotient = __umulhi(n << 1, factor) >> shift, rest = n - quotient * by;
    n = quotient;
    return rest;
  }
};

__device__ __forceinline__ int64_t times(unsigned n, int64_t stride) {
  return static_cast<int64_t>(n * static_cast<uint64_t>(stride));
}

namespace {

int log2_at_least(int64_t v) {
  int log = 0;
  while (int64_t{1} << log < v) ++log;
  return log;
}
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline Divider divider(int64_t by) {
  const int log = log2_at_least(by);
  const auto d = static_cast<unsigned>(by);
  return {d, static_cast<unsigned>(((uint64_t{1} << (31 + log)) + d - 1) / d),
          static_cast<unsigned>(log)};
}

// Shared memory and L1 are one memory, and a kernel that does not say how it is to be split finds
// it as the kernel before left it: after one that took much of it as shared, L1 is so
// small that a row of 16384 takes a fifth longer
// (docs/decisions/logs/0004-rmsnorm-measurements.md).
constexpr int kSmallShare = 10;  // percent that the small arrays of a forward kernel need

// A value, boolean or count, that is computed once for each device.
class PerDeviceCache {
 public:
  template <typename Compute>
  int of(const Compute& compute) {
    int device = 0;
    cudaGetDevice(&device);
    std::atomic<int>& known = known_[device % 64];
    if (known.load(std::memory_order_acquire) == 0) {
      known.store(1 + static_cast<int>(compute()), std::memory_order_release);
    }
    return known.load(std::memory_order_acquire) - 1;
  }

 private:
  std::atomic<int> known_[64] = {};  // 1 more than the value; 0: not computed yet
};

// Sets an attribute of a kernel before its first launch on each device.
template <typename Kernel>
void prepare(Kernel* kernel, cudaFuncAttribute attribute, int value, PerDeviceCache& done) {
  done.of([&] { return cudaFuncSetAttribute(kernel, attribute, value) == cudaSuccess; });
}

// Shared memory that a block may have on the current device.
inline int most_shared() {
  static std::atomic<int> known[64] = {};
  int device = 0;
  cudaGetDevice(&device);
  int most = known[device % 64].load(std::memory_order_relaxed);
  if (most == 0) {
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    most -= 1152;  // the kernels' own small arrays take at most 1040
    known[device % 64].store(most, std::memory_order_relaxed);
  }
  return most;
}

inline int multiprocessors() {
  static PerDeviceCache cache;
  return cache.of([] {
    int device = 0, count = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
  });
}

// Elements that a 16-byte access holds.
template <typename T>
constexpr int kVec = 16 / sizeof(T);

template <typename T, int VEC = kVec<T>>
bool aligned(const void* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % (VEC * sizeof(T)) == 0 && stride % VEC == 0;
}

// Threads of a one-row block: a whole number of warps.
int block_for(int64_t packs, int items) {
  return static_cast<int>(
      std::min<int64_t>(kMaxBlock, ceil_div(ceil_div(packs, items), kWarp) * kWarp));
}

}  // namespace
}  // namespace fuseline
