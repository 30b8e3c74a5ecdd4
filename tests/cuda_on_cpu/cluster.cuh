// Stands in for fuseline/cuda/cluster.cuh: clusters of one block, which does what it does of a row
// that it holds alone, or with BLOCKS_AT_ONCE of several.
#pragma once

#include "fuseline/cuda/async.cuh"

#define FUSELINE_CLUSTERS 1

namespace fuseline {

constexpr int kMaxCluster = 16;

struct Cluster {
#ifdef BLOCKS_AT_ONCE
  unsigned size = emulator::cluster_size;
#else
  unsigned size = 1;
#endif
  unsigned rank = blockIdx.x % size, index = blockIdx.x / size;
  static void arrive_relaxed() {}
  static void wait() {}
  static void synchronize() { __syncthreads(); }
};

template <typename Part>
struct ClusterParts {
  Part blocks[kMaxCluster];
  Mbarrier barrier;
};

template <typename Part>
Part cluster_parts(const Cluster& cluster, unsigned each, const Part& part, ClusterParts<Part>&,
                   unsigned = 0) {
#ifdef BLOCKS_AT_ONCE
  static thread_local emulator::Exchange* exchange;
  if (threadIdx.x == 0) {
    {
      const std::lock_guard<std::mutex> guard(emulator::lock);
      exchange = &emulator::exchanged[{cluster.index, emulator::exchanges++}];
    }
  }
  __syncthreads();
  if (threadIdx.x < cluster.size * each && threadIdx.x % cluster.size == 0) {
    const unsigned nth = threadIdx.x / cluster.size;
    std::memcpy(exchange->parts[cluster.rank * each + nth], &part, sizeof(Part));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ++exchange->count;
    while (exchange->count < cluster.size) emulator::pause();
  }
  __syncthreads();
  Part whole;
  const unsigned count = cluster.size * each;
  std::memcpy(&whole, exchange->parts[threadIdx.x & (count - 1)], sizeof(Part));
  return over_lanes(whole, count);
#endif
}

template <typename Part>
Part cluster_part(const Cluster& cluster, const Part& block, ClusterParts<Part>& place,
                  unsigned parity = 0) {
  if (cluster.size == 1) return block;
  return cluster_parts(cluster, 1, block, place, parity);
}

}  // namespace fuseline
