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
    expect(bytes);
    if (bytes > 0) start<RETAIN>(to, from, bytes);
#endif
  }
  // Starts a part of one of the copies, which `arrive` counts when all of its parts are started.
  __device__ void copy_part(void* to, const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address(&state)),
                 "r"(bytes)
                 : "memory");
    if (bytes > 0) start<false>(to, from, bytes);
#endif
  }
  __device__ void arrive() { expect(0); }
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

 private:
  template <bool RETAIN>
  __device__ void start(void* to, const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
    // Order reads of this buffer through the generic proxy before the copy.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
};

// Copies rows of n elements that lie `stride` apart, their elements `step`: side by side, by all
// threads of the block.
template <typename T>
__device__ __forceinline__ void gather(T* to, const T* from, int rows, int n, int64_t stride,
                                       int64_t step = 1) {
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * n; i += blockDim.x) {
    const int row = i / n;
    to[i] = from[row * stride + (i - row * n) * step];
  }
}

// Rows of a tensor that 16 bytes need not divide, taken a tile of neighbouring rows at a time: as
// one run where they lie side by side, else row by row, or short ones by elements.
template <typename T>
struct Tiles {
  static constexpr int kShort = 64;  // tiles of longer rows have at most as many as a warp lanes
  const T* begin;
  int64_t rows, stride;
  int n;

  // Bytes of a buffer for so many rows.
  static int bytes(int rows, int64_t n) {
    return n < kShort ? smem_bytes_for<T>(rows * n) : rows * smem_bytes_for<T>(n);
  }
  // Where a row of a tile lies in its buffer: as far past a multiple of 16 bytes as in memory.
  __device__ T* row(unsigned char* smem, int64_t first, int nth) const {
    const bool side_by_side = stride == n, apart = !side_by_side && n >= kShort;
    if (apart) smem += nth * smem_bytes_for<T>(n);
    const auto address = reinterpret_cast<uintptr_t>(begin + (first + (apart ? nth : 0)) * stride);
    T* const to = reinterpret_cast<T*>(smem + (side_by_side || apart ? address % 16 : 0));
    return apart ? to : to + nth * n;
  }

  // Starts to load rows first ... first + count; all threads of the block call. The tile is there
  // when they have synchronised and then waited for `barrier`.
  __device__ void load_async(unsigned char* smem, int64_t first, int count,
                             Mbarrier& barrier) const {
#if __CUDA_ARCH__ >= 900
    if (stride == n) return load_run(smem, first, count, barrier);
    if (n >= kShort) return load_rows(smem, first, count, barrier);
    if (threadIdx.x == 0) barrier.arrive();
#endif
    if (stride != n && n < kShort) {
      return gather(row(smem, first, 0), begin + first * stride, count, n, stride);
    }
    for (int nth = 0; nth < count; ++nth) {
      gather(row(smem, first, nth), begin + (first + nth) * stride, 1, n, stride);
    }
  }

 private:
  // Whole packs, those at the edges with what lies beside the tile, but not beside the tensor; what
  // lies before and behind those packs, by element.
  __device__ void load_run(unsigned char* smem, int64_t first, int count, Mbarrier& barrier) const {
    T* const to = row(smem, first, 0);
    const T* const from = begin + first * stride;
    const auto start = reinterpret_cast<uintptr_t>(from), all = start + count * n * sizeof(T);
    uintptr_t low = start / 16 * 16, high = (all + 15) / 16 * 16;
    if (low < reinterpret_cast<uintptr_t>(begin)) low += 16;
    if (high > reinterpret_cast<uintptr_t>(begin + rows * n)) high -= 16;
    if (high < low) high = low;
    if (threadIdx.x == 0) {
      barrier.copy(smem + (low - start / 16 * 16), reinterpret_cast<const void*>(low),
                   static_cast<unsigned>(high - low));
    }
    const int i = threadIdx.x, elements = count * n;
    const auto at = [&](int element) { return start + element * sizeof(T); };
    if (low > start && at(i) < min(low, all)) to[i] = from[i];
    if (high < all && elements - 1 - i >= 0 && at(elements - 1 - i) >= high) {
      to[elements - 1 - i] = from[elements - 1 - i];
    }
  }
  // The elements of a row whose bytes are whole packs.
  __device__ int2 whole_packs(const T* row) const {
    constexpr uintptr_t SIZE = sizeof(T);
    const auto start = reinterpret_cast<uintptr_t>(row);
    return {static_cast<int>(((start + 15) / 16 * 16 - start) / SIZE),
            static_cast<int>(((start + n * SIZE) / 16 * 16 - start) / SIZE)};
  }
  // Whole packs of each row by a lane of the first warp, what lies before and behind by element.
  __device__ void load_rows(unsigned char* smem, int64_t first, int count,
                            Mbarrier& barrier) const {
    constexpr int EDGE = 16 / sizeof(T);
    if (threadIdx.x < kWarp) {
      if (threadIdx.x < count) {
        const T* const from = begin + (first + threadIdx.x) * stride;
        const int2 whole = whole_packs(from);
        barrier.copy_part(row(smem, first, threadIdx.x) + whole.x, from + whole.x,
                          (whole.y - whole.x) * sizeof(T));
      }
      __syncwarp();
      if (threadIdx.x == 0) barrier.arrive();
    }
    for (int i = threadIdx.x; i < count * 2 * EDGE; i += blockDim.x) {
      const int nth = i / (2 * EDGE), nearest = i % EDGE;
      const bool behind = i / EDGE % 2;
      const T* const from = begin + (first + nth) * stride;
      const int2 whole = whole_packs(from);
      const int col = behind ? whole.y + nearest : nearest;
      if (col < (behind ? n : whole.x)) row(smem, first, nth)[col] = from[col];
    }
  }
};

}  // namespace fuseline
