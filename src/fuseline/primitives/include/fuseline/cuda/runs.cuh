// Runs of elements from any address, in shared memory: 16 bytes at a time, as far behind a multiple
// of 16 as in memory.
#pragma once

#include "fuseline/cuda/async_packs.cuh"
#include "fuseline/cuda/packs.cuh"

namespace fuseline {

// Calls `whole(byte)` for each 16 bytes at a multiple of 16 within the `bytes` behind the first
// `skew`, and `one(byte)` for each element of SIZE bytes before and behind those; this thread is
// one of those that share them. AT_ONCE takes instructions.
template <int SIZE, int AT_ONCE, typename Whole, typename One>
__device__ __forceinline__ void for_run(int skew, int bytes, int thread, int threads,
                                        const Whole& whole, const One& one) {
  constexpr int EACH = 16 / SIZE;
  const int end = skew + bytes, first = (skew + 15) & ~15, last = max(first, end & ~15);
#pragma unroll AT_ONCE
  for (int at = first + thread * 16; at < last; at += threads * 16) whole(at);
#pragma unroll 1
  for (int i = thread; i < 2 * EACH; i += threads) {
    const int at = (i < EACH ? first : last) + (i % EACH) * SIZE - (i < EACH ? 16 : 0);
    if (at >= skew && at < end) one(at);
  }
}

__device__ __forceinline__ int skew_of(const void* at) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(at) % 16);
}

// A run of elements, which are to lie at `at`.
template <typename T, int AT_ONCE = 4>
struct Run {
  int skew;
  unsigned char* smem;
  T* at;

  __device__ __forceinline__ Run(unsigned char* smem, const T* memory)
      : skew(skew_of(memory)), smem(smem), at(reinterpret_cast<T*>(smem + skew)) {}

  // Starts to copy `count` elements here, a batch of copies that each thread waits for.
  __device__ __forceinline__ void load(const T* from, int count, int thread, int threads) const {
    const char* const base = reinterpret_cast<const char*>(from) - skew;
    for_run<sizeof(T), AT_ONCE>(
        skew, count * static_cast<int>(sizeof(T)), thread, threads,
        [&](int byte) { copy16(smem + byte, base + byte); },
        [&](int byte) { copy<T>(smem + byte, base + byte); });
  }
  __device__ __forceinline__ void store(T* to, int count, int thread, int threads) const {
    char* const base = reinterpret_cast<char*>(to) - skew;
    for_run<sizeof(T), AT_ONCE>(
        skew, count * static_cast<int>(sizeof(T)), thread, threads,
        [&](int byte) { copy<uint4>(base + byte, smem + byte); },
        [&](int byte) { copy<T>(base + byte, smem + byte); });
  }

 private:
  template <typename Word>
  static __device__ __forceinline__ void copy(void* to, const void* from) {
    *static_cast<Word*>(to) = *static_cast<const Word*>(from);
  }
};

}  // namespace fuseline
