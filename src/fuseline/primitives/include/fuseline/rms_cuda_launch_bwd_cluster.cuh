// Launches the backward in thread-block clusters.
#pragma once

#include "fuseline/rms_cuda_bwd_cluster.cuh"
#include "fuseline/rms_cuda_launch_cluster.cuh"

namespace fuseline::rms {
namespace {

// Where something is added, a third of shared memory holds that. Where the weight is wider than x,
// a thread has registers for half as many packs of it and sums.
template <typename T, typename W, bool ADDS>
using BwdCluster = std::conditional_t<
    (sizeof(W) > sizeof(T)), ClusterShape<kVec<T>, 4, 512, 8>,
    std::conditional_t<ADDS, ClusterShape<kVec<T>, 6, 512, 9>, ClusterShape<kVec<T>, 8, 512, 14>>>;

template <typename T, typename W, bool ADDS>
ClusterLaunch bwd_cluster_launch(int64_t n) {
  using Shape = BwdCluster<T, W, ADDS>;
  return cluster_for<Shape::VEC, Shape::ITEMS, Shape::THREADS>(n, kRooms<ADDS> * Shape::ROOM);
}

template <typename T, typename W, bool ADDS>
int resident_bwd_clusters(int64_t n) {
  static CountedClusters counted;
  return resident_clusters(bwd_cluster_kernel<T, W, BwdCluster<T, W, ADDS>, ADDS>,
                           bwd_cluster_launch<T, W, ADDS>(n), counted);
}

template <typename T, typename W, bool ADDS>
void launch_bwd_clusters(const BwdArgs<T, W, ADDS>& a, const BwdProblem& p) {
  const ClusterLaunch l = bwd_cluster_launch<T, W, ADDS>(a.n);
  with_config(l, p.blocks, p.stream, [&](const cudaLaunchConfig_t& config) {
    return cudaLaunchKernelEx(&config, bwd_cluster_kernel<T, W, BwdCluster<T, W, ADDS>, ADDS>, a,
                              l.slice);
  });
}

}  // namespace
}  // namespace fuseline::rms
