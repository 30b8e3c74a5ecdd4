// What blocks of a grid tell each other through memory, where all of them are resident at once. A
// file of its own because tests/cuda_on_cpu has another in its place.
#pragma once

#include <cooperative_groups.h>

#include <utility>

#include "fuseline/cuda/packs.cuh"

namespace fuseline {

// The barrier of a cooperative launch in two halves, each of which all threads call once.
class GridBarrier {
 public:
  __device__ void arrive() { token_ = cooperative_groups::this_grid().barrier_arrive(); }
  __device__ void wait() { cooperative_groups::this_grid().barrier_wait(std::move(token_)); }

 private:
  unsigned token_;
};

// 8 bytes come whole, but in no order with others.
__device__ __forceinline__ void write_shared_word(uint64_t* to, uint64_t word) {
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ uint64_t read_shared_word(const uint64_t* from) {
  uint64_t word;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}

}  // namespace fuseline
