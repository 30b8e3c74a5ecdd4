// Chooses kernel and block by row length and alignment only, so that a row's result does not
// depend on the batch. Included once per dtype of x.
#pragma once

#include <algorithm>
#include <atomic>

#include "fuseline/rms_cuda_bwd_long.cuh"
#include "fuseline/rms_cuda_fwd.cuh"
#include "fuseline/rms_cuda_launch.h"
#include "fuseline/rms_cuda_skew.cuh"

namespace fuseline::rms {
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

template <typename T, int VEC = kVec<T>>
bool aligned(const void* p, int64_t stride) {
  return reinterpret_cast<uintptr_t>(p) % (VEC * sizeof(T)) == 0 && stride % VEC == 0;
}
// Whether every access of VEC elements finds them whole; a weight wider than x by 16 bytes at most.
template <int VEC, typename T, typename W, bool ADDS>
bool aligned(const FwdArgs<T, W, ADDS>& a) {
  constexpr int W_VEC = VEC < kVec<W> ? VEC : kVec<W>;
  if constexpr (ADDS) {
    if (!aligned<T, VEC>(a.residual, a.residual_stride)) return false;
    if (!aligned<T, VEC>(a.new_residual, a.n)) return false;
  }
  return aligned<T, VEC>(a.x, a.x_stride) && aligned<T, VEC>(a.y, a.n) &&
         aligned<W, W_VEC>(a.weight, 0);
}

// Threads of a one-row block: a whole number of warps.
int block_for(int64_t packs, int items) {
  return static_cast<int>(
      std::min<int64_t>(kMaxBlock, ceil_div(ceil_div(packs, items), kWarp) * kWarp));
}

template <typename T, typename W, typename Shape, bool ADDS>
void fwd_shaped(const FwdArgs<T, W, ADDS>& a, cudaStream_t stream) {
  const auto kernel = fwd_kernel<T, W, Shape, ADDS>;
  static std::atomic<uint64_t> done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  if constexpr (Shape::ROW_IS_BLOCK) {
    const int threads = block_for(ceil_div(a.n, Shape::VEC), Shape::ITEMS);
    kernel<<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a);
  } else {
    const int64_t blocks = ceil_div(a.rows, Shape::MAX_THREADS / Shape::ROW_THREADS);
    kernel<<<static_cast<unsigned>(blocks), Shape::MAX_THREADS, 0, stream>>>(a);
  }
}

template <typename T, typename W, int VEC, bool ADDS>
void fwd_long(const FwdArgs<T, W, ADDS>& a, cudaStream_t stream) {
  fwd_long_kernel<T, W, VEC, ADDS><<<static_cast<unsigned>(a.rows), kMaxBlock, 0, stream>>>(a);
}

// Rows of at most a warp's threads.
template <typename T, typename W, int VEC, int ITEMS, int ROW_THREADS, bool ADDS>
void fwd_short(const FwdArgs<T, W, ADDS>& a, cudaStream_t s) {
  fwd_shaped<T, W, FwdShape<VEC, ITEMS, ROW_THREADS, kSmallBlock, 1, true>>(a, s);
}

template <typename T, typename W, bool ADDS>
void fwd_aligned(const FwdArgs<T, W, ADDS>& a, cudaStream_t s) {
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
  if (packs <= 4 * 128) {
    fwd_shaped<T, W, FwdShape<VEC, 4, 0, 128, 1, true>>(a, s);
  } else if constexpr (ADDS) {
    // A residual takes the registers of as many packs again.
    if (packs <= 4 * 512) {
      fwd_shaped<T, W, FwdShape<VEC, 4, 0, 512, 2, false>>(a, s);
    } else if (packs <= 4 * kMaxBlock) {
      fwd_shaped<T, W, FwdShape<VEC, 4, 0, kMaxBlock, 1, false>>(a, s);
    } else {
      fwd_long<T, W, VEC>(a, s);
    }
  } else if (packs <= 4 * (sizeof(T) == 2 ? 256 : 512)) {
    fwd_shaped<T, W, FwdShape<VEC, 4, 0, 512, 1, true>>(a, s);
  } else if (sizeof(T) == 2 && packs <= 8 * 256) {
    fwd_shaped<T, W, FwdShape<VEC, 8, 0, 256, 4, false>>(a, s);
  } else if (sizeof(T) == 4 && packs <= 8 * 512) {
    fwd_shaped<T, W, FwdShape<VEC, 8, 0, 512, 2, false>>(a, s);
  } else if (packs <= 4 * kMaxBlock) {
    fwd_shaped<T, W, FwdShape<VEC, 4, 0, kMaxBlock, 1, false>>(a, s);
  } else if (packs <= 8 * kMaxBlock) {
    fwd_shaped<T, W, FwdShape<VEC, 8, 0, kMaxBlock, 1, false>>(a, s);
  } else {
    fwd_long<T, W, VEC>(a, s);
  }
}

// A shape of fwd_odd_kernel.
template <int ITEMS_, int THREADS_, int MIN_BLOCKS_>
struct FwdOddShape {
  static constexpr int ITEMS = ITEMS_, STAGES = 2, THREADS = THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
};

template <typename T, typename W, typename Shape, bool ADDS>
void fwd_odd_shaped(const FwdArgs<T, W, ADDS>& a, int sms, cudaStream_t stream) {
  const auto kernel = fwd_odd_kernel<T, W, Shape, ADDS>;
  static std::atomic<uint64_t> done;
  prepare(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared(), done);
  constexpr int TILE = Shape::THREADS / kWarp;
  const int room = room_for<T>(TILE * a.n), rooms = Shape::STAGES * (ADDS ? 2 : 1);
  const int64_t blocks = std::min<int64_t>(ceil_div(a.rows, TILE), sms * Shape::MIN_BLOCKS);
  kernel<<<static_cast<unsigned>(blocks), Shape::THREADS, rooms * room, stream>>>(a, room);
}

template <typename T, typename W, int ITEMS, int MAX_THREADS, bool ADDS>
void fwd_skew(const FwdArgs<T, W, ADDS>& a, cudaStream_t stream) {
  const auto kernel = fwd_skew_kernel<T, W, ITEMS, MAX_THREADS, ADDS>;
  static std::atomic<uint64_t> done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  const int threads = block_for(ceil_div(a.n, kVec<T>), ITEMS);
  kernel<<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a);
}

// Short rows that 16 bytes do not divide, by accesses of VEC elements.
template <typename T, typename W, int VEC, bool ADDS>
bool fwd_odd_short(const FwdArgs<T, W, ADDS>& a, cudaStream_t s) {
  const int64_t packs = ceil_div(a.n, VEC);
  if (packs <= 5 * 16) return fwd_short<T, W, VEC, 5, 16>(a, s), true;
  if (packs <= 9 * kWarp) return fwd_short<T, W, VEC, 9, kWarp>(a, s), true;
  if (packs <= 17 * kWarp) return fwd_short<T, W, VEC, 17, kWarp>(a, s), true;
  return false;
}

template <typename T, typename W, bool ADDS>
void fwd_odd(const FwdArgs<T, W, ADDS>& a, int sms, cudaStream_t s) {
  if constexpr (sizeof(T) < 8) {
    if (aligned<2>(a) && fwd_odd_short<T, W, 2>(a, s)) return;
  }
  if (fwd_odd_short<T, W, 1>(a, s)) return;
  if constexpr (sizeof(T) < 8) {
    if (a.n <= 33 * kWarp) return fwd_odd_shaped<T, W, FwdOddShape<33, 128, 4>>(a, sms, s);
  }
  const int64_t packs = ceil_div(a.n, kVec<T>);
  if (packs <= 3 * 512) return fwd_skew<T, W, 3, 512>(a, s);
  if (packs <= 4 * kMaxBlock) return fwd_skew<T, W, 4, kMaxBlock>(a, s);
  fwd_long<T, W, 1>(a, s);
}

template <typename T, typename W, bool ADDS>
cudaError_t fwd_typed(const FwdProblem& p) {
  FwdArgs<T, W, ADDS> a{{},
                        static_cast<const T*>(p.x),
                        static_cast<const W*>(p.weight),
                        static_cast<T*>(p.y),
                        static_cast<Stat<T>*>(p.rstd),
                        p.rows,
                        p.x_stride,
                        p.n,
                        p.eps,
                        static_cast<Stat<T>>(1.0 / static_cast<double>(p.n))};
  if constexpr (ADDS) {
    a.residual = static_cast<const T*>(p.residual);
    a.new_residual = static_cast<T*>(p.new_residual);
    a.residual_stride = p.residual_stride;
  }
  if (aligned<kVec<T>>(a)) {
    fwd_aligned(a, p.stream);
  } else {
    fwd_odd(a, p.sms, p.stream);
  }
  return cudaGetLastError();
}

struct Long {};  // rows that no block can hold

// A shape of bwd_odd_kernel, named like those of bwd_kernel.
template <int ITEMS_, int ROW_THREADS_, int MAX_THREADS_, int MIN_BLOCKS_>
struct OddShape {
  static constexpr int VEC = 1, ITEMS = ITEMS_, ROW_THREADS = ROW_THREADS_, STAGES = 2;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool MULTI_WARP = ROW_THREADS == 0;
};

// How the kernel of a shape is launched.
struct BwdLaunch {
  int threads, log_row_threads, groups, room, shared;
};

template <typename T, typename Shape, bool ADDS>
BwdLaunch bwd_launch(int64_t n) {
  const int64_t packs = ceil_div(n, Shape::VEC);
  BwdLaunch l;
  if constexpr (Shape::VEC == 1) {
    l.log_row_threads = log2_at_least(Shape::ROW_THREADS);
  } else {
    l.log_row_threads = log2_at_least(ceil_div(packs, Shape::ITEMS));
  }
  l.threads = Shape::MULTI_WARP ? block_for(packs, Shape::ITEMS) : Shape::MAX_THREADS;
  l.groups = Shape::MULTI_WARP ? 1 : l.threads >> l.log_row_threads;
  // Each stage: a room for each row, or for each tile of odd rows.
  l.room = Shape::VEC == 1 ? room_for<T>(l.groups * n) : static_cast<int>(n * sizeof(T));
  l.shared = (Shape::VEC == 1 ? 1 : l.groups) * Shape::STAGES * kRooms<ADDS> * l.room;
  if (!Shape::MULTI_WARP) {
    const int sums = l.threads / kWarp * static_cast<int>(n * sizeof(Stat<T>));
    l.shared = std::max(l.shared, sums);
  }
  return l;
}

// Calls f with the shape for rows of `packs` accesses, or with Long. Threads have few registers
// where many of them are needed to hold a row; docs/decisions/0004 has the measurements.
template <typename T, int VEC, bool ADDS, typename F>
auto with_bwd_shape(int64_t n, const F& f) {
  const auto if_it_fits = [&](auto shape) {
    const bool fits = bwd_launch<T, decltype(shape), ADDS>(n).shared <= most_shared();
    return fits ? f(shape) : f(Long{});
  };
  const int64_t packs = ceil_div(n, VEC);
  if constexpr (VEC == 1) {
    if (packs <= 4 * 16) return if_it_fits(OddShape<4, 16, 512, 2>{});
    if (packs <= 9 * 16) return if_it_fits(OddShape<9, 16, 256, 2>{});
    if (packs <= 8 * kWarp) return if_it_fits(OddShape<8, kWarp, 256, 2>{});
    if constexpr (sizeof(T) < 8) {
      if (packs <= 33 * kWarp) return if_it_fits(OddShape<33, kWarp, 256, 1>{});
    }
    if (packs <= 8 * 512) return if_it_fits(OddShape<8, 0, 512, 1>{});
    if constexpr (sizeof(T) < 8) {
      if (packs <= 8 * 1024) return if_it_fits(OddShape<8, 0, 1024, 1>{});
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

template <typename T, int VEC, bool ADDS>
int64_t parts_by_length(BwdProblem& p, int sms) {
  return with_bwd_shape<T, VEC, ADDS>(p.n, [&](auto shape) -> int64_t {
    using Shape = decltype(shape);
    if constexpr (std::is_same_v<Shape, Long>) {
      const int64_t most = ceil_div(sms * kTileBlocksPerSm, column_tiles<VEC>(p.n));
      return p.blocks = std::max<int64_t>(1, std::min(p.rows, most));
    } else {
      const BwdLaunch l = bwd_launch<T, Shape, ADDS>(p.n);
      const int64_t tiles = std::max<int64_t>(1, ceil_div(p.rows, l.groups));
      p.blocks = bwd_blocks<Shape>(tiles, l.threads, sms);
      if (!Shape::MULTI_WARP) return p.blocks;
      // Each block writes a part every kRowsInTurn rows; the last time only those with rows left.
      const int64_t full = (ceil_div(tiles, p.blocks) - 1) / kRowsInTurn * p.blocks;
      return full + std::min(p.blocks, tiles - full * kRowsInTurn);
    }
  });
}

template <typename T, typename W, int VEC, bool ADDS>
void bwd_by_length(const BwdArgs<T, W, ADDS>& a, const BwdProblem& p) {
  const auto blocks = static_cast<unsigned>(p.blocks);
  with_bwd_shape<T, VEC, ADDS>(a.n, [&](auto shape) {
    using Shape = decltype(shape);
    if constexpr (std::is_same_v<Shape, Long>) {
      if (a.dx) {
        bwd_long_dx_kernel<T, W, VEC, ADDS>
            <<<static_cast<unsigned>(a.rows), kMaxBlock, 0, p.stream>>>(a);
      }
      if (a.partial) {
        const dim3 grid(static_cast<unsigned>(column_tiles<VEC>(a.n)), blocks);
        bwd_long_dweight_kernel<T, W, VEC, ADDS><<<grid, kTileThreads, 0, p.stream>>>(a);
      }
    } else {
      const BwdLaunch l = bwd_launch<T, Shape, ADDS>(a.n);
      static std::atomic<uint64_t> done;
      constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
      if constexpr (VEC == 1) {
        const auto kernel = bwd_odd_kernel<T, W, Shape, ADDS>;
        prepare(kernel, kAttribute, most_shared(), done);
        kernel<<<blocks, l.threads, l.shared, p.stream>>>(a, l.room);
      } else {
        const auto kernel = bwd_kernel<T, W, Shape, ADDS>;
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
         aligned<T>(p.added, p.added_stride) && aligned<T>(p.weight, 0);
}

template <typename T, typename W, bool ADDS>
int64_t parts_typed(BwdProblem& p, int sms) {
  return bwd_is_wide<T, W>(p) ? parts_by_length<T, kVec<T>, ADDS>(p, sms)
                              : parts_by_length<T, 1, ADDS>(p, sms);
}

template <typename T, typename W, bool ADDS>
void bwd_typed(const BwdProblem& p) {
  using S = Stat<T>;
  if (p.rows) {
    BwdArgs<T, W, ADDS> a{{},
                          static_cast<const T*>(p.dy),
                          static_cast<const T*>(p.x),
                          static_cast<const W*>(p.weight),
                          static_cast<const S*>(p.rstd),
                          static_cast<T*>(p.dx),
                          static_cast<S*>(p.partial),
                          p.rows,
                          p.dy_stride,
                          p.x_stride,
                          p.n,
                          static_cast<S>(1.0 / static_cast<double>(p.n))};
    if constexpr (ADDS) {
      a.added = static_cast<const T*>(p.added);
      a.added_stride = p.added_stride;
    }
    bwd_is_wide<T, W>(p) ? bwd_by_length<T, W, kVec<T>>(a, p) : bwd_by_length<T, W, 1>(a, p);
  }
  if (p.dweight) p.parts <= 64 ? bwd_finish<S, W, 8>(p) : bwd_finish<S, W, kWarp>(p);
}

}  // namespace

template <typename T, bool ADDS>
cudaError_t launch_fwd(const FwdProblem& p) {
  return p.weight_type == WeightType::kSame ? fwd_typed<T, T, ADDS>(p)
                                            : fwd_typed<T, float, ADDS>(p);
}

template <typename T, bool ADDS>
cudaError_t launch_bwd(const BwdProblem& p) {
  p.weight_type == WeightType::kSame ? bwd_typed<T, T, ADDS>(p) : bwd_typed<T, float, ADDS>(p);
  return cudaGetLastError();
}

template <typename T, bool ADDS>
int64_t bwd_parts(BwdProblem& p, int sms) {
  return p.weight_type == WeightType::kSame ? parts_typed<T, T, ADDS>(p, sms)
                                            : parts_typed<T, float, ADDS>(p, sms);
}

}  // namespace fuseline::rms

// Instantiates the launches for one dtype of x, and for the norm of x or of x + residual.
#define FUSELINE_RMS_INSTANTIATE(T, ADDS)                                     \
  template cudaError_t fuseline::rms::launch_fwd<T, ADDS>(const FwdProblem&); \
  template cudaError_t fuseline::rms::launch_bwd<T, ADDS>(const BwdProblem&); \
  template int64_t fuseline::rms::bwd_parts<T, ADDS>(BwdProblem&, int);
