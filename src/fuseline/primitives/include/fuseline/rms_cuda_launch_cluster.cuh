// Launches in thread-block clusters, where the GPU has them.
#pragma once

#include "fuseline/rms_cuda_blocks.cuh"
#include "fuseline/rms_cuda_cluster.cuh"
#include "fuseline/rms_cuda_launch.h"

namespace fuseline::rms {
namespace {

// How clusters of `size` blocks (a power of two; 0: none holds such a row) are launched.
struct ClusterLaunch {
  int size, slice, threads, shared;
};

// The cluster whose blocks of so many threads hold a row of n, in slices of whole packs.
template <int VEC, int ITEMS, int THREADS>
ClusterLaunch cluster_for(int64_t n, int shared) {
  const int64_t packs = n / VEC;
  const int size = 1 << log2_at_least(ceil_div(packs, ITEMS * THREADS));
  return {size <= kMaxCluster ? size : 0, static_cast<int>(ceil_div(packs, size) * VEC), THREADS,
          shared};
}

// Calls f with what CUDA wants to know of such a launch.
template <typename F>
cudaError_t with_config(const ClusterLaunch& l, int64_t clusters, cudaStream_t stream, const F& f) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(l.size), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(clusters * l.size);
  config.blockDim = static_cast<unsigned>(l.threads);
  config.dynamicSmemBytes = static_cast<size_t>(l.shared);
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return f(config);
}

// Clusters that the current GPU holds at once: 0 where it has none, or where this was compiled for
// an older one. Multiprocessors come in groups of differing numbers, so only CUDA can tell.
template <typename Kernel>
int count_clusters(Kernel* kernel, const ClusterLaunch& l) {
  int clusters = 0;
  cudaFuncAttributes compiled;
  const bool counted =
      cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess && compiled.ptxVersion >= 90 &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, l.shared) ==
          cudaSuccess &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
          cudaSuccess &&
      with_config(l, 1, nullptr, [&](const cudaLaunchConfig_t& config) {
        return cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
      }) == cudaSuccess;
  if (!counted) cudaGetLastError();  // or the launch that follows were blamed
  return counted ? clusters : 0;
}

// The same, counted once a device and size; 0 where no cluster holds such a row.
struct CountedClusters {
  std::atomic<int> of[64][kMaxCluster + 1] = {};  // and one more
};
template <typename Kernel>
int resident_clusters(Kernel* kernel, const ClusterLaunch& l, CountedClusters& counted) {
  if (l.size == 0 || l.shared > most_shared()) return 0;
  int device = 0;
  cudaGetDevice(&device);
  std::atomic<int>& clusters = counted.of[device % 64][l.size];
  if (clusters.load(std::memory_order_acquire) == 0) {
    clusters.store(count_clusters(kernel, l) + 1, std::memory_order_release);
  }
  return clusters.load(std::memory_order_relaxed) - 1;
}

}  // namespace
}  // namespace fuseline::rms
