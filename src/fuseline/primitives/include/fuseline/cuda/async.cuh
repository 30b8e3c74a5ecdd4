// Asynchronous copies from memory to shared memory.
#pragma once

#include "fuseline/cuda/async_packs.cuh"
#include "fuseline/cuda/packs.cuh"

namespace fuseline {

// Bytes of shared memory that hold `elements` from any address on.
template <typename T>
__host__ __device__ constexpr int smem_bytes_for(int64_t elements) {
  return static_cast<int>((elements * sizeof(T) + 15) / 16 * 16 + 16);
}

// An mbarrier that bulk copies report to. Before sm_90 tiles are loaded by ordinary loads: no
// waiting.
struct Mbarrier {
  uint64_t state;

  __device__ static unsigned address(const void* p) {
    return static_cast<unsigned>(__cvta_generic_to_shared(p));
  }
  __device__ void init(int copies) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&state)), "r"(copies));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }
  // Counts one of the copies, which will transfer that many bytes.
  __device__ void expect(unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(&state)),
                 "r"(bytes)
                 : "memory");
#endif
  }
  // Starts one of the copies; 16 divides addresses and bytes. RETAIN: see retained().
  template <bool RETAIN = false>
  __device__ void copy(void* to, const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    // Order reads of this buffer through the generic proxy before the copy.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    expect(bytes);
    if (bytes == 0) return;
    if constexpr (RETAIN) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
          "[%1], %2, [%3], %4;" ::"r"(address(to)),
          "l"(from), "r"(bytes), "r"(address(&state)), "l"(kEvictLast)
          : "memory");
    } else {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(address(to)),
          "l"(from), "r"(bytes), "r"(address(&state))
          : "memory");
    }
#endif
  }
  __device__ void wait(unsigned parity) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\n"
        "again_%=:\nmbarrier.try_wait.parity.acquire.cta.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n}" ::"r"(address(&state)),
        "r"(parity)
        : "memory");
#endif
  }
};

// Copies rows of n elements that lie `stride` apart: side by side, by all threads of the block, row
// after row where one is work for these.
template <typename T>
__device__ __forceinline__ void gather(T* to, const T* from, int rows, int n, int64_t stride) {
  if (n >= 64) {
    for (int row = 0; row < rows; ++row) {
      for (int col = threadIdx.x; col < n; col += blockDim.x) {
        to[row * n + col] = from[row * stride + col];
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * n; i += blockDim.x) {
    const int row = i / n;
    to[i] = from[row * stride + (i - row * n)];
  }
}

// Rows of a tensor that 16 bytes need not divide, taken a tile of neighbouring rows at a time.
template <typename T>
struct Tiles {
  const T* begin;
  int64_t rows, stride;
  int n;

  // Start of a tile in its buffer: as far past a multiple of 16 bytes as in memory.
  __device__ T* place(unsigned char* smem, int64_t first) const {
    const auto address = reinterpret_cast<uintptr_t>(begin + first * stride);
    return reinterpret_cast<T*>(smem + (stride == n ? address % 16 : 0));
  }

  // Starts to load rows first ... first + count; all threads of the block call. The tile is there
  // when they have synchronised and then waited for `barrier`.
  __device__ void load_async(unsigned char* smem, int64_t first, int count,
                             Mbarrier& barrier) const {
    T* const to = place(smem, first);
    const T* const from = begin + first * stride;
#if __CUDA_ARCH__ >= 900
    if (stride == n) {
      // Whole packs, those at the edges with what lies beside the tile, but not beside the tensor.
      const auto start = reinterpret_cast<uintptr_t>(from), all = start + count * n * sizeof(T);
      uintptr_t low = start / 16 * 16, high = (all + 15) / 16 * 16;
      if (low < reinterpret_cast<uintptr_t>(begin)) low += 16;
      if (high > reinterpret_cast<uintptr_t>(begin + rows * n)) high -= 16;
      if (high < low) high = low;
      if (threadIdx.x == 0) {
        barrier.copy(smem + (low - start / 16 * 16), reinterpret_cast<const void*>(low),
                     static_cast<unsigned>(high - low));
      }
      // What lies before and behind those packs, by element.
      const int i = threadIdx.x, elements = count * n;
      const auto at = [&](int element) { return start + element * sizeof(T); };
      if (low > start && at(i) < min(low, all)) to[i] = from[i];
      if (high < all && elements - 1 - i >= 0 && at(elements - 1 - i) >= high) {
        to[elements - 1 - i] = from[elements - 1 - i];
      }
      return;
    }
    if (threadIdx.x == 0) barrier.copy(nullptr, nullptr, 0);
#endif
    gather(to, from, count, n, stride);
  }
};

}  // namespace fuseline
