// Runs of elements from any address, in shared memory: 16 bytes at a time, as far behind a multiple
// of 16 as in memory.
#pragma once

#include "fuseline/cuda/async_packs.cuh"
#include "fuseline/cuda/packs.cuh"

namespace fuseline {

// Calls `whole(byte)` for each 16 bytes at a multiple of 16 of the `bytes` behind the first `skew`,
// or `some(first, last)` where they begin or end within; this thread is one of those that share
// them.
template <typename Whole, typename Some>
__device__ __forceinline__ void for_run(int skew, int bytes, int thread, int threads,
                                        const Whole& whole, const Some& some) {
  for (int at = thread * 16; at < skew + bytes; at += threads * 16) {
    if (at >= skew && at + 16 <= skew + bytes) {
      whole(at);
    } else {
      some(max(at, skew), min(at + 16, skew + bytes));
    }
  }
}

// A run of elements, which are to lie at `at`.
template <typename T>
struct Run {
  int skew;
  unsigned char* smem;
  T* at;

  __device__ __forceinline__ Run(unsigned char* smem, const T* memory)
      : skew(static_cast<int>(reinterpret_cast<uintptr_t>(memory) % 16)),
        smem(smem),
        at(reinterpret_cast<T*>(smem + skew)) {}

  // Starts to copy `count` elements here, a batch of copies that each thread waits for.
  __device__ __forceinline__ void load(const T* from, int count, int thread, int threads) const {
    const char* const base = reinterpret_cast<const char*>(from) - skew;
    for_run(
        skew, count * static_cast<int>(sizeof(T)), thread, threads,
        [&](int byte) { copy16(smem + byte, base + byte); },
        [&](int first, int last) { copy_elements(smem, base, first, last); });
  }
  __device__ __forceinline__ void store(T* to, int count, int thread, int threads) const {
    char* const base = reinterpret_cast<char*>(to) - skew;
    for_run(
        skew, count * static_cast<int>(sizeof(T)), thread, threads,
        [&](int byte) {
          *reinterpret_cast<uint4*>(base + byte) = *reinterpret_cast<const uint4*>(smem + byte);
        },
        [&](int first, int last) { copy_elements(base, smem, first, last); });
  }

 private:
  template <typename To, typename From>
  static __device__ __forceinline__ void copy_elements(To* to, const From* from, int first,
                                                       int last) {
    for (int b = first; b < last; b += sizeof(T)) {
      *reinterpret_cast<T*>(to + b) = *reinterpret_cast<const T*>(from + b);
    }
  }
};

}  // namespace fuseline
