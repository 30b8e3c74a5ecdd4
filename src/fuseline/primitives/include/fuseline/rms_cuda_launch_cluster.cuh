// Launches the backward in thread-block clusters, where the GPU has them.
#pragma once

#include "fuseline/rms_cuda_blocks.cuh"
#include "fuseline/rms_cuda_bwd_cluster.cuh"
#include "fuseline/rms_cuda_launch.h"

namespace fuseline::rms {
namespace {

// Where something is added, a third of shared memory holds that. Where the weight is wider than x,
// a thread has registers for half as many packs of it and sums.
template <typename T, typename W, bool ADDS>
using BwdCluster = std::conditional_t<
    (sizeof(W) > sizeof(T)), ClusterShape<kVec<T>, 4, 512, 8>,
    std::conditional_t<ADDS, ClusterShape<kVec<T>, 6, 512, 9>, ClusterShape<kVec<T>, 8, 512, 14>>>;

// How clusters of `size` blocks (a power of two; 0: none holds such a row) are launched.
struct ClusterLaunch {
  int size, slice, threads, shared;
};

template <typename T, typename W, bool ADDS>
ClusterLaunch cluster_launch(int64_t n) {
  using Shape = BwdCluster<T, W, ADDS>;
  const int64_t packs = n / Shape::VEC;
  const int size = 1 << log2_at_least(ceil_div(packs, Shape::ITEMS * Shape::THREADS));
  const auto slice = static_cast<int>(ceil_div(packs, size) * Shape::VEC);
  return {size <= kMaxCluster ? size : 0, slice, Shape::THREADS, kRooms<ADDS> * Shape::ROOM};
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

// The same for rows of n, counted once a device and size; 0 where no cluster holds such a row.
template <typename T, typename W, bool ADDS>
int resident_clusters(int64_t n) {
  static std::atomic<int> known[64][kMaxCluster + 1] = {};  // and one more
  const ClusterLaunch l = cluster_launch<T, W, ADDS>(n);
  if (l.size == 0 || l.shared > most_shared()) return 0;
  int device = 0;
  cudaGetDevice(&device);
  std::atomic<int>& clusters = known[device % 64][l.size];
  if (clusters.load(std::memory_order_acquire) == 0) {
    const auto kernel = bwd_cluster_kernel<T, W, BwdCluster<T, W, ADDS>, ADDS>;
    clusters.store(count_clusters(kernel, l) + 1, std::memory_order_release);
  }
  return clusters.load(std::memory_order_relaxed) - 1;
}

template <typename T, typename W, bool ADDS>
void launch_clusters(const BwdArgs<T, W, ADDS>& a, const BwdProblem& p) {
  const ClusterLaunch l = cluster_launch<T, W, ADDS>(a.n);
  with_config(l, p.blocks, p.stream, [&](const cudaLaunchConfig_t& config) {
    return cudaLaunchKernelEx(&config, bwd_cluster_kernel<T, W, BwdCluster<T, W, ADDS>, ADDS>, a,
                              l.slice);
  });
}

}  // namespace
}  // namespace fuseline::rms
