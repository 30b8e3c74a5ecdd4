// Clusters of one block, in place of fuseline/cluster.cuh: what a block does of a row that it holds
// alone.
#pragma once

#include "fuseline/async.cuh"

#define FUSELINE_CLUSTERS 1

namespace fuseline {

constexpr int kMaxCluster = 16;

struct Cluster {
  unsigned size = 1, rank = 0, index = blockIdx.x;
  static void arrive_relaxed() {}
  static void wait() {}
  static void synchronize() { __syncthreads(); }
};

template <typename Part>
struct ClusterParts {
  Part blocks[kMaxCluster], warps[kWarp];
  Mbarrier barrier;
};

template <typename Part>
Part cluster_part(const Cluster&, const Part& block, ClusterParts<Part>&, unsigned = 0) {
  return block;
}

using ClusterSum = ClusterParts<double>;

template <int THREADS>
double cluster_sum(const Cluster&, double v, ClusterSum& place) {
  return row_sum<true>(v, THREADS, place.warps);
}

}  // namespace fuseline
