// Thread-block clusters (sm_90 and later): who is in one, and sums over all its threads.
#pragma once

#include "fuseline/cuda/async.cuh"

// Whether device code that this stands in is compiled for a GPU with clusters.
#define FUSELINE_CLUSTERS (__CUDA_ARCH__ >= 900)

namespace fuseline {

constexpr int kMaxCluster = 16;

// The cluster of the calling block.
struct Cluster {
  unsigned size, rank, index;  // blocks (2^k), this one among them; this cluster among all

  __device__ Cluster() {
#if __CUDA_ARCH__ >= 900
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(index));
#endif
  }
  // The cluster's barrier in two halves. A relaxed arrival does not wait for what was written.
  __device__ static void arrive_relaxed() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }
  __device__ static void wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
  }
  __device__ static void synchronize() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
    wait();
  }
};

// Where the blocks of a cluster leave their parts of a sum, in each of them. An mbarrier counts
// what is sent; the cluster's own barrier would first wait foreverything that was stored to memory.
template <typename Part>
struct ClusterParts {
  Part blocks[kMaxCluster];
  Mbarrier barrier;

  // Writes v to blocks[from] of block `to`.
  __device__ void send(unsigned from, unsigned to, const Part& v) {
#if __CUDA_ARCH__ >= 900
    constexpr int kWords = sizeof(Part) / sizeof(uint64_t);
    static_assert(sizeof(Part) % sizeof(uint64_t) == 0);
    const auto* const words = reinterpret_cast<const uint64_t*>(&v);
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      asm volatile(
          "{\n.reg .b32 place, barrier;\n"
          "mapa.shared::cluster.u32 place, %0, %2;\n"
          "mapa.shared::cluster.u32 barrier, %1, %2;\n"
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [place], %3, [barrier];\n"
          "}" ::"r"(Mbarrier::address(&blocks[from]) + i * 8),
          "r"(Mbarrier::address(&barrier)), "r"(to), "l"(words[i])
          : "memory");
    }
#endif
  }
  // Mbarrier::wait for what comes from other blocks.
  __device__ void wait(unsigned parity) const {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\n"
        "again_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again_%=;\n}" ::"r"(Mbarrier::address(&barrier)),
        "r"(parity)
        : "memory");
#endif
  }
};

// The parts of all blocks put together: every thread gets that, in an order that depends on their
// number alone, a power of two up to kMaxCluster. A block has `each`, thread i that of
// index i / size. A place serves again, with the other parity, once another has served in between:
// then no block is still reading it.
template <typename Part>
__device__ __forceinline__ Part cluster_parts(const Cluster& cluster, unsigned each,
                                              const Part& part, ClusterParts<Part>& place,
                                              unsigned parity = 0) {
  const unsigned count = cluster.size * each;
  if (threadIdx.x == 0) place.barrier.expect(count * sizeof(Part));
  if (threadIdx.x < count) {
    place.send(cluster.rank * each + threadIdx.x / cluster.size, threadIdx.x % cluster.size, part);
  }
  place.wait(parity);
  return over_lanes(place.blocks[threadIdx.x & (count - 1)], count);
}

// The same of a part that all threads of a block have in common.
template <typename Part>
__device__ __forceinline__ Part cluster_part(const Cluster& cluster, const Part& block,
                                             ClusterParts<Part>& place, unsigned parity = 0) {
  if (cluster.size == 1) return block;  // which has no shared memory of a cluster
  return cluster_parts(cluster, 1, block, place, parity);
}

}  // namespace fuseline
