// Chooses the forward kernel and its block.
#pragma once

#include "fuseline/blocks.cuh"
#include "fuseline/launch_cluster.cuh"
#include "fuseline/rms_cuda_fwd_cluster.cuh"
#include "fuseline/rms_cuda_fwd_grid.cuh"
#include "fuseline/rms_cuda_fwd_twice.cuh"
#include "fuseline/rms_cuda_launch.h"
#include "fuseline/rms_cuda_launch_grid.cuh"
#include "fuseline/rms_cuda_skew.cuh"

namespace fuseline::rms {
namespace {

using fuseline::aligned;

// Whether every access of VEC elements finds them whole; a weight wider than x by 16 bytes at most.
template <int VEC, typename T, typename W, bool ADDS, typename Y>
bool aligned(const FwdArgs<T, W, ADDS, Y>& a) {
  constexpr int W_VEC = VEC < kVec<W> ? VEC : kVec<W>;
  if constexpr (ADDS) {
    if (!aligned<T, VEC>(a.residual, a.residual_stride)) return false;
    if (!aligned<T, VEC>(a.new_residual, a.n)) return false;
  }
  return aligned<T, VEC>(a.x, a.x_stride) && aligned<Y, VEC>(a.y, a.n) &&
         aligned<W, W_VEC>(a.weight, 0);
}

template <typename T, typename W, typename Shape, bool ADDS, typename Y>
void fwd_shaped(const FwdArgs<T, W, ADDS, Y>& a, cudaStream_t stream) {
  const auto kernel = fwd_kernel<T, W, Shape, ADDS, Y>;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  if constexpr (Shape::ROW_IS_BLOCK) {
    const int threads = block_for(ceil_div(a.n, Shape::VEC), Shape::ITEMS);
    kernel<<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a);
  } else {
    const int64_t blocks = ceil_div(a.rows, Shape::MAX_THREADS / Shape::ROW_THREADS);
    kernel<<<static_cast<unsigned>(blocks), Shape::MAX_THREADS, 0, stream>>>(a);
  }
}

template <typename T, typename W, int THREADS, typename Y>
void fwd_twice_by(const FwdArgs<T, W, false, Y>& a, cudaStream_t stream) {
  const auto kernel = fwd_twice_kernel<T, W, THREADS, Y>;
  static PerDeviceCache done;
  const int share = cudaSharedmemCarveoutMaxL1;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, share, done);
  kernel<<<static_cast<unsigned>(a.rows), THREADS, 0, stream>>>(a);
}

// Rows of 2048 to 4096 packs. A thread with fewer than four waits for them one after the other.
template <typename T, typename W, typename Y>
void fwd_twice(const FwdArgs<T, W, false, Y>& a, int64_t packs, cudaStream_t s) {
  if (packs < 4 * 768) return fwd_twice_by<T, W, 512>(a, s);
  packs < 4 * 1024 ? fwd_twice_by<T, W, 768>(a, s) : fwd_twice_by<T, W, 1024>(a, s);
}

template <typename T, typename W, int VEC, bool ADDS, typename Y>
void fwd_long(const FwdArgs<T, W, ADDS, Y>& a, cudaStream_t stream) {
  fwd_long_kernel<T, W, VEC, ADDS, Y><<<static_cast<unsigned>(a.rows), kMaxBlock, 0, stream>>>(a);
}

// False where no cluster of such blocks holds a row, or the GPU has none.
template <typename T, typename W, typename Shape, bool ADDS, typename Y>
bool fwd_clustered(const FwdArgs<T, W, ADDS, Y>& a, cudaStream_t stream) {
  const auto kernel = fwd_cluster_kernel<T, W, Shape, ADDS, Y>;
  const auto l = cluster_for<Shape::VEC, Shape::ITEMS, Shape::MAX_THREADS>(a.n);
  static PerDeviceCache cache[kMaxCluster + 1];
  if (!l.size || !cache[l.size].of([&] { return clusters_held(kernel, l); })) return false;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  with_config(l, a.rows, stream, [&](const cudaLaunchConfig_t& config) {
    return cudaLaunchKernelEx(&config, kernel, a, l.slice);
  });
  return true;
}

// Whether 64 registers hold four packs a thread and their weight: 1024 such threads a
// multiprocessor have 64 KB of x on their way.
template <typename T, typename W, bool ADDS>
constexpr bool kFits64Registers = !ADDS && sizeof(W) <= sizeof(T);

// Rows of at most a warp's threads.
template <typename T, typename W, int VEC, int ITEMS, int ROW_THREADS, bool ADDS, typename Y>
void fwd_short(const FwdArgs<T, W, ADDS, Y>& a, cudaStream_t s) {
  constexpr int MIN_BLOCKS = ITEMS == 4 && kFits64Registers<T, W, ADDS> ? 1024 / kSmallBlock : 1;
  fwd_shaped<T, W, FwdShape<VEC, ITEMS, ROW_THREADS, kSmallBlock, MIN_BLOCKS, true>>(a, s);
}

// Rows of 129 to 4096 packs of 4- and 8-byte elements.
template <typename T, typename W, typename Y>
void fwd_middle(const FwdArgs<T, W, false, Y>& a, int64_t packs, cudaStream_t s) {
  constexpr int VEC = kVec<T>;
  if (packs <= 4 * 64) return fwd_shaped<T, W, FwdShape<VEC, 4, 0, 64, 16, true>>(a, s);
  if (packs <= 4 * 128) return fwd_shaped<T, W, FwdShape<VEC, 4, 0, 128, 8, true>>(a, s);
  if (packs <= 4 * 256) return fwd_shaped<T, W, FwdShape<VEC, 4, 0, 256, 4, true>>(a, s);
  if (packs < 4 * 512) return fwd_shaped<T, W, FwdShape<VEC, 4, 0, 512, 2, true>>(a, s);
  fwd_twice<T, W>(a, packs, s);
}

// Packs of rows that clusters of up to 8 blocks hold; others are better shared by a grid.
constexpr int64_t kInSmallClusters = 8 * 8 * 256;

// Rows that are better held by a cluster than by a block.
template <typename T, typename W, bool ADDS, typename Y>
bool fwd_by_clusters(const FwdArgs<T, W, ADDS, Y>& a, int64_t packs, cudaStream_t s) {
  constexpr int VEC = kVec<T>;
  if (packs <= kInSmallClusters) {
    return fwd_clustered<T, W, FwdShape<VEC, 8, 0, 256, 4, false>>(a, s);
  }
  if constexpr (ADDS) return fwd_clustered<T, W, FwdShape<VEC, 8, 0, 512, 2, false>>(a, s);
  return false;
}

template <typename T, typename W, bool ADDS, typename Y>
void fwd_aligned(const FwdArgs<T, W, ADDS, Y>& a, cudaStream_t s) {
  constexpr int VEC = kVec<T>;
  const int64_t packs = ceil_div(a.n, VEC);
  if (packs <= 1) return fwd_short<T, W, VEC, 1, 1>(a, s);
  if (packs <= 2) return fwd_short<T, W, VEC, 1, 2>(a, s);
  if (packs <= 4) return fwd_short<T, W, VEC, 1, 4>(a, s);
  if (packs <= 8) return fwd_short<T, W, VEC, 1, 8>(a, s);
  if (packs <= 16) return fwd_short<T, W, VEC, 1, 16>(a, s);
  if (packs <= 32) return fwd_short<T, W, VEC, 2, 16>(a, s);
  if (packs <= 64) return fwd_short<T, W, VEC, 4, 16>(a, s);
  if (packs <= 128) return fwd_short<T, W, VEC, 4, 32>(a, s);
  if constexpr (!ADDS && sizeof(T) >= 4) {
    if (packs <= 4 * kMaxBlock) return fwd_middle<T, W>(a, packs, s);
  } else {
    if (packs <= 4 * 128) return fwd_shaped<T, W, FwdShape<VEC, 4, 0, 128, 1, true>>(a, s);
    // A residual takes the registers of as many packs again.
    using Middle = FwdShape<VEC, 4, 0, 512, ADDS ? 2 : 1, !ADDS>;
    if (packs <= 4 * 512) return fwd_shaped<T, W, Middle>(a, s);
    if (packs <= 4 * kMaxBlock) {
      if constexpr (ADDS) {
        return fwd_shaped<T, W, FwdShape<VEC, 4, 0, kMaxBlock, 1, false>>(a, s);
      } else {
        return fwd_twice<T, W>(a, packs, s);
      }
    }
  }
  if (fwd_by_clusters(a, packs, s)) return;
  if constexpr (!ADDS) {
    if (packs <= 8 * kMaxBlock) {
      return fwd_shaped<T, W, FwdShape<VEC, 8, 0, kMaxBlock, 1, false>>(a, s);
    }
  }
  fwd_long<T, W, VEC>(a, s);
}

// A shape of fwd_odd_kernel.
template <int ITEMS_, int THREADS_, int MIN_BLOCKS_>
struct FwdOddShape {
  static constexpr int ITEMS = ITEMS_, STAGES = 2, THREADS = THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
};

// False if the tiles do not fit shared memory, of which GPUs before sm_80 have 64 KB.
template <typename T, typename W, typename Shape, bool ADDS, typename Y>
bool fwd_odd_shaped(const FwdArgs<T, W, ADDS, Y>& a, int sms, cudaStream_t stream) {
  const auto kernel = fwd_odd_kernel<T, W, Shape, ADDS, Y>;
  constexpr int TILE = Shape::THREADS / kWarp;
  const int buffer_bytes = smem_bytes_for<T>(TILE * a.n), buffers = Shape::STAGES * (ADDS ? 2 : 1);
  if (buffers * buffer_bytes > most_shared()) return false;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared(), done);
  const int64_t blocks = std::min<int64_t>(ceil_div(a.rows, TILE), sms * Shape::MIN_BLOCKS);
  kernel<<<static_cast<unsigned>(blocks), Shape::THREADS, buffers * buffer_bytes, stream>>>(
      a, buffer_bytes);
  return true;
}

template <typename T, typename W, int ITEMS, int MAX_THREADS, bool ADDS, typename Y>
void fwd_skew(const FwdArgs<T, W, ADDS, Y>& a, cudaStream_t stream) {
  const auto kernel = fwd_skew_kernel<T, W, ITEMS, MAX_THREADS, ADDS, Y>;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  const int threads = block_for(ceil_div(a.n, kVec<T>), ITEMS);
  kernel<<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a);
}

// Short rows that 16 bytes do not divide, by accesses of VEC elements.
template <typename T, typename W, int VEC, bool ADDS, typename Y>
bool fwd_odd_short(const FwdArgs<T, W, ADDS, Y>& a, cudaStream_t s) {
  const int64_t packs = ceil_div(a.n, VEC);
  if (packs <= 5 * 16) return fwd_short<T, W, VEC, 5, 16>(a, s), true;
  if (packs <= 9 * kWarp) return fwd_short<T, W, VEC, 9, kWarp>(a, s), true;
  if (packs <= 17 * kWarp) return fwd_short<T, W, VEC, 17, kWarp>(a, s), true;
  return false;
}

template <typename T, typename W, bool ADDS, typename Y>
void fwd_odd(const FwdArgs<T, W, ADDS, Y>& a, int sms, cudaStream_t s) {
  if constexpr (sizeof(T) < 8) {
    if (aligned<2>(a) && fwd_odd_short<T, W, 2>(a, s)) return;
  }
  if (fwd_odd_short<T, W, 1>(a, s)) return;
  if constexpr (sizeof(T) < 8 || !ADDS) {
    using Shape = FwdOddShape<33, 128, sizeof(T) < 8 ? 4 : 3>;
    if (a.n <= 33 * kWarp && fwd_odd_shaped<T, W, Shape>(a, sms, s)) return;
  }
  const int64_t packs = ceil_div(a.n, kVec<T>);
  if (packs <= 3 * 512) return fwd_skew<T, W, 3, 512>(a, s);
  if (packs <= 4 * kMaxBlock) return fwd_skew<T, W, 4, kMaxBlock>(a, s);
  fwd_long<T, W, 1>(a, s);
}

template <typename T, typename W, bool ADDS, typename Y>
FwdArgs<T, W, ADDS, Y> fwd_args(const FwdProblem& p) {
  FwdArgs<T, W, ADDS, Y> a{{},
                           {},
                           static_cast<const T*>(p.x),
                           static_cast<const W*>(p.weight),
                           static_cast<Y*>(p.y),
                           static_cast<Stat<T>*>(p.rstd),
                           p.rows,
                           p.x_stride,
                           p.n,
                           p.eps,
                           static_cast<Stat<T>>(p.n),
                           static_cast<Stat<T>>(1.0 / static_cast<double>(p.n)),
                           static_cast<Stat<T>>(p.weight_offset)};
  if constexpr (ADDS) {
    a.residual = static_cast<const T*>(p.residual);
    a.new_residual = static_cast<T*>(p.new_residual);
    a.residual_stride = p.residual_stride;
  }
  if constexpr (std::is_same_v<Y, e4m3>) a.scale = p.scale;
  return a;
}

// Calls f with the kernel for rows that clusters do not hold, and how they are shared.
template <typename T, typename W, typename Y, typename F>
auto with_fwd_grid(const FwdProblem& p, const F& f) {
  using Small = SmallSlices<T>;
  // With fewer than three groups too many blocks would have none.
  const int64_t least = ceil_div(p.n / Small::VEC, Small::ITEMS * Small::THREADS);
  const auto with = [&](auto shape) {
    using Shape = decltype(shape);
    return f(shape, grid_plan<T, Shape>(p.rows, p.n, p.sms, 1));
  };
  return 3 * least <= p.sms * Small::PER_SM ? with(Small{}) : with(LargeSlices<T>{});
}

// Sums that the launch exchanges. Nothing is added to rows that are shared.
template <typename T, typename W, bool ADDS, typename Y>
int64_t fwd_sums_typed(const FwdProblem& p) {
  if constexpr (!ADDS) {
    if (p.n / kVec<T> > kInSmallClusters && aligned<kVec<T>>(fwd_args<T, W, ADDS, Y>(p))) {
      return with_fwd_grid<T, W, Y>(p, [&](auto shape, const GridPlan& plan) -> int64_t {
        using Shape = decltype(shape);
        const bool held = plan.size && known_to_hold<fwd_grid_kernel<T, W, Shape, Y>, Shape>();
        return held ? p.rows * plan.size : 0;
      });
    }
  }
  return 0;
}

template <typename T, typename W, typename Y>
void fwd_shared(const FwdArgs<T, W, false, Y>& a, const FwdProblem& p) {
  with_fwd_grid<T, W, Y>(p, [&](auto shape, const GridPlan& plan) {
    using Shape = decltype(shape);
    launch_grid<T, Shape>(fwd_grid_kernel<T, W, Shape, Y>, a, plan, 1, p.sums, p.stream);
  });
}

template <typename T, typename W, bool ADDS, typename Y>
cudaError_t fwd_typed(const FwdProblem& p) {
  const auto a = fwd_args<T, W, ADDS, Y>(p);
  if (p.sums) {
    if constexpr (!ADDS) fwd_shared(a, p);
  } else if (aligned<kVec<T>>(a)) {
    fwd_aligned(a, p.stream);
  } else {
    fwd_odd(a, p.sms, p.stream);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline::rms
