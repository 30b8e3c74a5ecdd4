// Launches in thread-block clusters, where the GPU has them.
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/cluster.cuh"

namespace fuseline {
namespace {

// How clusters of `size` blocks (a power of two; 0: none holds such a row) are launched.
struct ClusterLaunch {
  int size, slice, threads;
  int shared = 0;  // bytes of a block, beside the kernel's own arrays
};

// The cluster whose blocks of so many threads hold a row of n, in slices of whole packs.
template <int VEC, int ITEMS, int THREADS>
ClusterLaunch cluster_for(int64_t n) {
  const int64_t packs = ceil_div(n, VEC);
  const int size = 1 << log2_at_least(ceil_div(packs, ITEMS * THREADS));
  return {size <= kMaxCluster ? size : 0, static_cast<int>(ceil_div(packs, size) * VEC), THREADS};
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
  config.dynamicSmemBytes = l.shared;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  return f(config);
}

// How many such clusters the current GPU holds; none where this was compiled for one before sm_90.
template <typename Kernel>
int clusters_held(Kernel* kernel, const ClusterLaunch& l) {
  int clusters = 0;
  cudaFuncAttributes compiled;
  const bool asked =
      cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess && compiled.ptxVersion >= 90 &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) ==
          cudaSuccess &&
      // Never less than what another size was promised.
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           std::max(l.shared, compiled.maxDynamicSharedSizeBytes)) == cudaSuccess &&
      with_config(l, 1, nullptr, [&](const cudaLaunchConfig_t& config) {
        return cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
      }) == cudaSuccess;
  if (!asked) cudaGetLastError();  // or the launch that follows were blamed
  return asked ? clusters : 0;
}

}  // namespace
}  // namespace fuseline
