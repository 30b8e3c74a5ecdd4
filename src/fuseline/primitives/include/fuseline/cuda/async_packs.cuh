// Asynchronous copies of packs, which each thread waits for by itself. A file of its own because
// tests/cuda_on_cpu has another in its place.
#pragma once

#include <cuda_runtime.h>

namespace fuseline {

// Copies 16 bytes to shared memory without waiting for them; GPUs before sm_80 wait. `often`: what
// many rows are comes from L1, since all would ask the same part of L2.
__device__ __forceinline__ void copy16(void* to, const void* from, bool often = false) {
#if __CUDA_ARCH__ >= 800
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if (often) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
  }
#else
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
#endif
}

// Ends a batch of this thread's copies.
__device__ __forceinline__ void end_batch() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `LATER` of this thread's batches are on their way.
template <int LATER>
__device__ __forceinline__ void wait_for_batch() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(LATER) : "memory");
#endif
}

}  // namespace fuseline
