// Chooses kernel and block by row length and alignment only, so that a row's result does not
// depend on the batch. Included once per dtype of x.
#pragma once

#include <algorithm>
#include <atomic>

#include "impl_cuda_bwd.cuh"
#include "impl_cuda_fwd.cuh"
#include "impl_cuda_launch.h"

namespace fuseline::rms_norm {
namespace {

int log2_at_least(int64_t v) {
  int log = 0;
  while (int64_t{1} << log < v) ++log;
  return log;
}
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Shared memory and L1 are one memory, and a kernel that does not say how it is to be split finds
// it as the kernel before left it: after one that took much of it as shared, loads have so little
// room that a row of 16384 takes a fifth longer (docs/decisions/0004).
constexpr int kSmallShare = 10;  // percent that the small arrays of a forward kernel need

// Sets an attribute of a kernel before its first launch on each device.
template <typename Kernel>
void prepare(Kernel* kernel, cudaFuncAttribute attribute, int value, std::atomic<uint64_t>& done) {
  int device = 0;
  cudaGetDevice(&device);
  const uint64_t bit = uint64_t{1} << (device % 64);
  if (done.load(std::memory_order_acquire) & bit) return;
  cudaFuncSetAttribute(kernel, attribute, value);
  done.fetch_or(bit, std::memory_order_release);
}

// Shared memory that a block may have on the current device.
inline int most_shared() {
  static std::atomic<int> known[64] = {};
  int device = 0;
  cudaGetDevice(&device);
  int most = known[device % 64].load(std::memory_order_relaxed);
  if (most == 0) {
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    most -= 1 << 10;  // the kernels' own small arrays
    known[device % 64].store(most, std::memory_order_relaxed);
  }
  return most;
}

// Elements that a 16-byte access holds.
template <typename T>
constexpr int kVec = 16 / sizeof(T);

template <typename T>
bool aligned(const void* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % kVec<T> == 0;
}

// Threads of a one-row block: a whole number of warps.
int block_for(int64_t packs, int items) {
  return static_cast<int>(
      std::min<int64_t>(kMaxBlock, ceil_div(ceil_div(packs, items), kWarp) * kWarp));
}

template <typename T, typename W, typename Shape>
void fwd_shaped(const FwdArgs<T, W>& a, int64_t packs, cudaStream_t stream) {
  const auto kernel = fwd_kernel<T, W, Shape>;
  static std::atomic<uint64_t> done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  if constexpr (Shape::ROW_IS_BLOCK) {
    const int threads = block_for(packs, Shape::ITEMS);
    kernel<<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a, 0);
  } else {
    const int log_row_threads = log2_at_least(ceil_div(packs, Shape::ITEMS));
    const int64_t blocks = ceil_div(a.rows << log_row_threads, kSmallBlock);
    kernel<<<static_cast<unsigned>(blocks), kSmallBlock, 0, stream>>>(a, log_row_threads);
  }
}

template <typename T, typename W, int VEC>
void fwd_long(const FwdArgs<T, W>& a, cudaStream_t stream) {
  fwd_long_kernel<T, W, VEC><<<static_cast<unsigned>(a.rows), kMaxBlock, 0, stream>>>(a);
}

template <typename T, typename W>
void fwd_aligned(const FwdArgs<T, W>& a, cudaStream_t s) {
  constexpr int VEC = kVec<T>;
  const int64_t packs = ceil_div(a.n, VEC);
  if (packs <= 16) {
    fwd_shaped<T, W, FwdShape<VEC, 1, false, kSmallBlock, 1, true>>(a, packs, s);
  } else if (packs <= 4 * kWarp) {
    fwd_shaped<T, W, FwdShape<VEC, 4, false, kSmallBlock, 1, true>>(a, packs, s);
  } else if (packs <= 4 * 128) {
    fwd_shaped<T, W, FwdShape<VEC, 4, true, 128, 1, true>>(a, packs, s);
  } else if (packs <= 4 * (sizeof(T) == 2 ? 256 : 512)) {
    fwd_shaped<T, W, FwdShape<VEC, 4, true, 512, 1, true>>(a, packs, s);
  } else if (sizeof(T) == 4 && packs > 4 * 512 && packs <= 8 * 512) {
    fwd_shaped<T, W, FwdShape<VEC, 8, true, 512, 2, false>>(a, packs, s);
  } else if (packs <= 4 * kMaxBlock) {
    fwd_shaped<T, W, FwdShape<VEC, 4, true, kMaxBlock, 1, false>>(a, packs, s);
  } else if (packs <= 8 * kMaxBlock) {
    fwd_shaped<T, W, FwdShape<VEC, 8, true, kMaxBlock, 1, false>>(a, packs, s);
  } else {
    fwd_long<T, W, VEC>(a, s);
  }
}

// Launches a kernel that has a room in shared memory for each tile; false if it has no place there.
template <typename T, typename W, int ITEMS, bool ROW_IS_BLOCK, int MAX_THREADS>
bool fwd_odd_shaped(const FwdArgs<T, W>& a, int tile, cudaStream_t stream) {
  const auto kernel = fwd_odd_kernel<T, W, ITEMS, ROW_IS_BLOCK, MAX_THREADS>;
  const int shared = room_for<T>(tile * a.n);
  if (shared > most_shared()) return false;
  static std::atomic<uint64_t> done;
  prepare(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared(), done);
  const int threads = ROW_IS_BLOCK ? block_for(a.n, ITEMS) : MAX_THREADS;
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, tile));
  kernel<<<blocks, threads, shared, stream>>>(a, tile);
  return true;
}

template <typename T, typename W>
bool fwd_odd(const FwdArgs<T, W>& a, cudaStream_t s) {
  constexpr int kWarps = kOddBlock / kWarp;
  if (a.n <= 2 * kWarp) return fwd_odd_shaped<T, W, 2, false, kOddBlock>(a, 2 * kWarps, s);
  if (a.n <= 8 * kWarp) return fwd_odd_shaped<T, W, 8, false, kOddBlock>(a, 2 * kWarps, s);
  if constexpr (sizeof(T) < 8) {
    if (a.n <= 33 * kWarp) return fwd_odd_shaped<T, W, 33, false, kOddBlock>(a, kWarps, s);
  }
  if (a.n <= 16 * 512) return fwd_odd_shaped<T, W, 16, true, 512>(a, 1, s);
  if (a.n <= 16 * kMaxBlock) return fwd_odd_shaped<T, W, 16, true, kMaxBlock>(a, 1, s);
  return false;
}

template <typename T, typename W>
cudaError_t fwd_typed(const FwdProblem& p) {
  const FwdArgs<T, W> a{static_cast<const T*>(p.x),
                        static_cast<const W*>(p.weight),
                        static_cast<T*>(p.y),
                        static_cast<Stat<T>*>(p.rstd),
                        p.rows,
                        p.x_stride,
                        p.n,
                        p.eps,
                        static_cast<Stat<T>>(1.0 / static_cast<double>(p.n)),
                        static_cast<Stat<T>>(p.weight_offset)};
  const bool wide = aligned<T>(p.x, p.x_stride) && aligned<T>(p.y, p.n) && aligned<T>(p.weight, 0);
  if (wide) {
    fwd_aligned(a, p.stream);
  } else if (!fwd_odd(a, p.stream)) {
    fwd_long<T, W, 1>(a, p.stream);
  }
  return cudaGetLastError();
}

struct Long {};  // rows that no block can hold

// A shape of bwd_odd_kernel, named like those of bwd_kernel.
template <int ITEMS_, bool ROW_IS_BLOCK_, int MAX_THREADS_, int MIN_BLOCKS_>
struct OddShape {
  static constexpr int VEC = 1, ITEMS = ITEMS_, STAGES = 2;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool MULTI_WARP = ROW_IS_BLOCK_;
};

// How the kernel of a shape is launched.
struct BwdLaunch {
  int threads, log_row_threads, groups, room, shared;
};

template <typename T, typename Shape>
BwdLaunch bwd_launch(int64_t n) {
  const int64_t packs = ceil_div(n, Shape::VEC);
  BwdLaunch l;
  l.log_row_threads = Shape::VEC == 1 ? 5 : log2_at_least(ceil_div(packs, Shape::ITEMS));
  l.threads = Shape::MULTI_WARP ? block_for(packs, Shape::ITEMS) : Shape::MAX_THREADS;
  l.groups = Shape::MULTI_WARP ? 1 : l.threads >> l.log_row_threads;
  // x and dy of each stage: a room for each row, or for each tile of odd rows.
  l.room = Shape::VEC == 1 ? room_for<T>(l.groups * n) : static_cast<int>(n * sizeof(T));
  l.shared = (Shape::VEC == 1 ? 1 : l.groups) * Shape::STAGES * 2 * l.room;
  if (!Shape::MULTI_WARP) {
    const int sums = l.threads / kWarp * static_cast<int>(n * sizeof(Stat<T>));
    l.shared = std::max(l.shared, sums);
  }
  return l;
}

// Calls f with the shape for rows of `packs` accesses, or with Long. Threads have few registers
// where many of them are needed to hold a row; docs/decisions/0004 has the measurements.
template <typename T, int VEC, typename F>
auto with_bwd_shape(int64_t n, const F& f) {
  const auto if_it_fits = [&](auto shape) {
    const bool fits = bwd_launch<T, decltype(shape)>(n).shared <= most_shared();
    return fits ? f(shape) : f(Long{});
  };
  const int64_t packs = ceil_div(n, VEC);
  if constexpr (VEC == 1) {
    if (packs <= 2 * kWarp) return if_it_fits(OddShape<2, false, 512, 2>{});
    if (packs <= 8 * kWarp) return if_it_fits(OddShape<8, false, 256, 2>{});
    if constexpr (sizeof(T) < 8) {
      if (packs <= 33 * kWarp) return if_it_fits(OddShape<33, false, 256, 1>{});
    }
    if (packs <= 8 * 512) return if_it_fits(OddShape<8, true, 512, 1>{});
    if constexpr (sizeof(T) < 8) {
      if (packs <= 8 * 1024) return if_it_fits(OddShape<8, true, 1024, 1>{});
    }
  } else {
    constexpr bool kHalf = sizeof(T) == 2;
    if (packs <= 16) return if_it_fits(BwdShape<VEC, 1, false, 256, 2, 2, true>{});
    if (packs <= 64) return if_it_fits(BwdShape<VEC, 2, false, 256, 2, 2, true>{});
    if (packs <= 128) return if_it_fits(BwdShape<VEC, 4, false, 256, 2, 2, false>{});
    if (packs <= 256) return if_it_fits(BwdShape<VEC, 1, true, 256, 4, 2, true>{});
    if (packs <= 2 * 512) return if_it_fits(BwdShape<VEC, 2, true, 512, 1, 3, true>{});
    if constexpr (kHalf) {
      if (packs <= 2 * 1024) return if_it_fits(BwdShape<VEC, 2, true, 1024, 1, 2, false>{});
    } else {
      constexpr int kStages = sizeof(T) == 8 ? 2 : 1;
      if (packs <= 4 * 512) return if_it_fits(BwdShape<VEC, 4, true, 512, 1, kStages, false>{});
      if (packs <= 4 * 1024) return if_it_fits(BwdShape<VEC, 4, true, 1024, 1, 1, false>{});
    }
  }
  return f(Long{});
}

// Below so many rows a block, starting it and adding up what it leaves costs more than it gains.
constexpr int kLeastTurns = 5;

// Blocks of a persistent grid: as many as are surely resident at once.
template <typename Shape>
int64_t bwd_blocks(int64_t tiles, int threads, int sms) {
  const int64_t resident = Shape::MIN_BLOCKS * (Shape::MAX_THREADS / threads);
  const int64_t worthwhile = std::max<int64_t>(1, tiles / (int64_t{sms} * kLeastTurns));
  const int64_t per_sm = Shape::MULTI_WARP ? std::min(resident, worthwhile) : resident;
  const int64_t blocks = std::max<int64_t>(1, std::min(tiles, sms * per_sm));
  // A block of short rows writes one part, so it may not have more turns.
  return Shape::MULTI_WARP ? blocks : std::max(blocks, ceil_div(tiles, kRowsInTurn));
}

// Column tiles of the kernels for long rows, and the blocks that share the rows of each.
constexpr int kTileThreads = 256;
constexpr int kTileBlocksPerSm = 4;
template <int VEC>
int64_t column_tiles(int64_t n) {
  return ceil_div(n, static_cast<int64_t>(kTileThreads) * VEC);
}

template <typename T, int VEC>
int64_t parts_by_length(BwdProblem& p, int sms) {
  return with_bwd_shape<T, VEC>(p.n, [&](auto shape) -> int64_t {
    using Shape = decltype(shape);
    if constexpr (std::is_same_v<Shape, Long>) {
      const int64_t most = ceil_div(sms * kTileBlocksPerSm, column_tiles<VEC>(p.n));
      return p.blocks = std::max<int64_t>(1, std::min(p.rows, most));
    } else {
      const BwdLaunch l = bwd_launch<T, Shape>(p.n);
      const int64_t tiles = std::max<int64_t>(1, ceil_div(p.rows, l.groups));
      p.blocks = bwd_blocks<Shape>(tiles, l.threads, sms);
      if (!Shape::MULTI_WARP) return p.blocks;
      // Each block writes a part every kRowsInTurn rows; the last time only those with rows left.
      const int64_t full = (ceil_div(tiles, p.blocks) - 1) / kRowsInTurn * p.blocks;
      return full + std::min(p.blocks, tiles - full * kRowsInTurn);
    }
  });
}

template <typename T, typename W, int VEC>
void bwd_by_length(const BwdArgs<T, W>& a, const BwdProblem& p) {
  const auto blocks = static_cast<unsigned>(p.blocks);
  with_bwd_shape<T, VEC>(a.n, [&](auto shape) {
    using Shape = decltype(shape);
    if constexpr (std::is_same_v<Shape, Long>) {
      if (a.dx) {
        bwd_long_dx_kernel<T, W, VEC><<<static_cast<unsigned>(a.rows), kMaxBlock, 0, p.stream>>>(a);
      }
      if (a.partial) {
        const dim3 grid(static_cast<unsigned>(column_tiles<VEC>(a.n)), blocks);
        bwd_long_dweight_kernel<T, W, VEC><<<grid, kTileThreads, 0, p.stream>>>(a);
      }
    } else {
      const BwdLaunch l = bwd_launch<T, Shape>(a.n);
      static std::atomic<uint64_t> done;
      constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
      if constexpr (VEC == 1) {
        const auto kernel = bwd_odd_kernel<T, W, Shape>;
        prepare(kernel, kAttribute, most_shared(), done);
        kernel<<<blocks, l.threads, l.shared, p.stream>>>(a, l.room);
      } else {
        const auto kernel = bwd_kernel<T, W, Shape>;
        prepare(kernel, kAttribute, most_shared(), done);
        kernel<<<blocks, l.threads, l.shared, p.stream>>>(a, l.log_row_threads, l.room);
      }
    }
  });
}

template <typename S, typename W, int WARPS>
void bwd_finish(const BwdProblem& p) {
  const auto tiles = static_cast<unsigned>(ceil_div(p.n, kWarp));
  bwd_finish_kernel<S, W, WARPS><<<tiles, WARPS * kWarp, 0, p.stream>>>(
      static_cast<const S*>(p.partial), static_cast<int>(p.rows ? p.parts : 0), p.n,
      static_cast<W*>(p.dweight));
}

template <typename T, typename W>
bool bwd_is_wide(const BwdProblem& p) {
  return aligned<T>(p.x, p.x_stride) && aligned<T>(p.dy, p.dy_stride) && aligned<T>(p.dx, p.n) &&
         aligned<T>(p.weight, 0);
}

template <typename T, typename W>
int64_t parts_typed(BwdProblem& p, int sms) {
  return bwd_is_wide<T, W>(p) ? parts_by_length<T, kVec<T>>(p, sms) : parts_by_length<T, 1>(p, sms);
}

template <typename T, typename W>
void bwd_typed(const BwdProblem& p) {
  using S = Stat<T>;
  if (p.rows) {
    const BwdArgs<T, W> a{static_cast<const T*>(p.dy),
                          static_cast<const T*>(p.x),
                          static_cast<const W*>(p.weight),
                          static_cast<const S*>(p.rstd),
                          static_cast<T*>(p.dx),
                          static_cast<S*>(p.partial),
                          p.rows,
                          p.dy_stride,
                          p.x_stride,
                          p.n,
                          static_cast<S>(1.0 / static_cast<double>(p.n)),
                          static_cast<S>(p.weight_offset)};
    bwd_is_wide<T, W>(p) ? bwd_by_length<T, W, kVec<T>>(a, p) : bwd_by_length<T, W, 1>(a, p);
  }
  if (p.dweight) p.parts <= 64 ? bwd_finish<S, W, 8>(p) : bwd_finish<S, W, kWarp>(p);
}

}  // namespace

template <typename T>
cudaError_t launch_fwd(const FwdProblem& p) {
  return p.weight_type == WeightType::kSame ? fwd_typed<T, T>(p) : fwd_typed<T, float>(p);
}

template <typename T>
cudaError_t launch_bwd(const BwdProblem& p) {
  p.weight_type == WeightType::kSame ? bwd_typed<T, T>(p) : bwd_typed<T, float>(p);
  return cudaGetLastError();
}

template <typename T>
int64_t bwd_parts(BwdProblem& p, int sms) {
  return p.weight_type == WeightType::kSame ? parts_typed<T, T>(p, sms)
                                            : parts_typed<T, float>(p, sms);
}

}  // namespace fuseline::rms_norm

#define FUSELINE_RMS_NORM_INSTANTIATE(T)                                     \
  template cudaError_t fuseline::rms_norm::launch_fwd<T>(const FwdProblem&); \
  template cudaError_t fuseline::rms_norm::launch_bwd<T>(const BwdProblem&); \
  template int64_t fuseline::rms_norm::bwd_parts<T>(BwdProblem&, int);
