// Chooses the backward kernels, their blocks and the partial sums of dweight.
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/columns/column_sums.cuh"
#include "fuseline/cuda/norm/backward/rms_cuda_bwd_grid.cuh"
#include "fuseline/cuda/norm/backward/rms_cuda_bwd_long.cuh"
#include "fuseline/cuda/norm/backward/rms_cuda_bwd_odd.cuh"
#include "fuseline/cuda/norm/backward/rms_cuda_launch_grid.cuh"
#include "fuseline/cuda/norm/rms_cuda_launch.h"

namespace fuseline::rms {
namespace {

struct Long {};  // rows that no block can hold

// A shape of bwd_odd_kernel, named like those of bwd_kernel.
template <int ITEMS_, int ROW_THREADS_, int MAX_THREADS_, int MIN_BLOCKS_>
struct OddShape {
  static constexpr int VEC = 1, ITEMS = ITEMS_, ROW_THREADS = ROW_THREADS_, STAGES = 2;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool MULTI_WARP = ROW_THREADS == 0, BY_WARPS = ROW_THREADS > kWarp;
  static constexpr int SUMS = ROW_THREADS == kWarp && ITEMS > 8 ? 4 : 1;  // of a thread's elements
};

// How the kernel of a shape is launched.
struct BwdLaunch {
  int threads, log_row_threads, groups, buffer_bytes, shared;
};

template <typename T, typename Shape, Kind KIND>
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
  // Each stage: a buffer for each row, or for each tile of odd rows.
  l.buffer_bytes = Shape::VEC == 1 ? Tiles<T>::bytes(l.groups, n) : static_cast<int>(n * sizeof(T));
  l.shared = (Shape::VEC == 1 ? 1 : l.groups) * Shape::STAGES * kBuffers<KIND> * l.buffer_bytes;
  if constexpr (Shape::VEC == 1) {
    if (Shape::BY_WARPS) l.shared = Shape::STAGES * kSums<KIND> * l.threads * sizeof(Stat<T>);
  }
  if (!Shape::MULTI_WARP) {
    const int rows = l.threads / std::max(kWarp, 1 << l.log_row_threads);
    const int sums = rows * static_cast<int>(n * sizeof(Stat<T>));
    l.shared = std::max(l.shared, sums);
  }
  return l;
}

// Calls f with the shape for rows of `packs` accesses, or with Long. Threads have few registers
// where many of them are needed to hold a row, or two planes;
// docs/decisions/logs/0004-rmsnorm-measurements.md has the measurements, none of which is of a
// centred norm.
template <typename T, int VEC, Kind KIND, typename F>
auto with_bwd_shape(const BwdProblem& p, const F& f) {
  const int64_t n = p.n;
  const bool few = p.rows <= int64_t{4} * p.sms;
  const auto if_it_fits = [&](auto shape) {
    const bool fits = bwd_launch<T, decltype(shape), KIND>(n).shared <= most_shared();
    return fits ? f(shape) : f(Long{});
  };
  const int64_t packs = ceil_div(n, VEC);
  constexpr bool CENTRED = kIsCentred<KIND>;
  if constexpr (VEC == 1) {
    using Small = std::conditional_t<CENTRED && sizeof(T) == 8, OddShape<4, 16, 256, 3>,
                                     OddShape<4, 16, 512, 2>>;
    if (packs <= 4 * 4) return if_it_fits(OddShape<4, 4, 512, 2>{});
    if (packs <= 4 * 16) return if_it_fits(Small{});
    if (packs <= 9 * 16) return if_it_fits(OddShape<9, 16, 256, 2>{});
    if (packs <= 8 * kWarp) return if_it_fits(OddShape<8, kWarp, 256, 2>{});
    if constexpr (sizeof(T) < 8) {
      // The two have the same sums in the same order; fewer elements a thread take less time, but
      // more of the processors' than many rows leave them.
      if (packs <= 33 * kWarp) {
        return few ? if_it_fits(OddShape<9, 4 * kWarp, 512, 1>{})
                   : if_it_fits(OddShape<33, kWarp, 256, 1>{});
      }
    }
    if (packs <= 8 * 512) return if_it_fits(OddShape<8, 0, 512, 1>{});
    if constexpr (sizeof(T) < 8) {
      using Large = std::conditional_t<CENTRED, OddShape<16, 0, 512, 1>, OddShape<8, 0, 1024, 1>>;
      if (packs <= 8 * 1024) return if_it_fits(Large{});
    }
  } else {
    if (packs <= 16) return if_it_fits(BwdShape<VEC, 1, false, 256, 2, 2, true>{});
    if (packs <= 64) return if_it_fits(BwdShape<VEC, 2, false, 256, 2, 2, true>{});
    if constexpr (!CENTRED || sizeof(T) > 2) {
      if (packs <= 128) return if_it_fits(BwdShape<VEC, 4, false, 256, 2, 2, false>{});
    }
    if (packs <= 256) return if_it_fits(BwdShape<VEC, 1, true, 256, 4, 2, true>{});
    if (packs <= 2 * 512) return if_it_fits(BwdShape<VEC, 2, true, 512, 1, 3, true>{});
    constexpr bool FOUR = CENTRED || (std::is_same_v<T, __nv_bfloat16> && KIND == Kind::kPlain);
    if constexpr (sizeof(T) == 2 && FOUR) {
      if (packs <= 4 * 512) return if_it_fits(BwdShape<VEC, 4, true, 512, 1, 3, false>{});
    } else if constexpr (sizeof(T) == 2) {
      if (packs <= 2 * 1024) return if_it_fits(BwdShape<VEC, 2, true, 1024, 1, 2, false>{});
    } else {
      constexpr int kStages = sizeof(T) == 8 ? 2 : 1;
      if (packs <= 4 * 512) return if_it_fits(BwdShape<VEC, 4, true, 512, 1, kStages, false>{});
      // One of 1024 threads has too few registers for four packs of fp64, or for two planes.
      constexpr bool EIGHT = sizeof(T) == 8 || CENTRED;
      using Large = std::conditional_t<EIGHT, BwdShape<VEC, 8, true, 512, 1, 1, false>,
                                       BwdShape<VEC, 4, true, 1024, 1, 1, false>>;
      if (packs <= 4 * 1024) return if_it_fits(Large{});
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

// Parts of dweight that blocks, or groups of them, write: one each every `turns` rows, the last
// time only those with rows left.
int64_t parts_of(int64_t rows, int64_t blocks, int turns) {
  const int64_t full = (ceil_div(rows, blocks) - 1) / turns * blocks;
  return full + std::min(blocks, rows - full * turns);
}

// Column tiles of the kernels for long rows, and the blocks that share the rows of each.
constexpr int kTileBlocksPerSm = 4;
template <int VEC>
constexpr int kTileItems = VEC == 1 ? 4 : 1;
template <int VEC>
int64_t column_tiles(int64_t n) {
  return ceil_div(n, static_cast<int64_t>(kTileThreads) * kTileItems<VEC> * VEC);
}

// The slices of a long row depend on its length alone, as the order of its sums does.
template <int VEC>
LongSlices slices_of(int64_t n, void* sums) {
  constexpr int64_t kMost = 128, kLeastColumns = 2048;
  const int64_t count = std::min(kMost, ceil_div(n, kLeastColumns));
  return {static_cast<int>(count), ceil_div(ceil_div(n, VEC), count) * VEC,
          static_cast<double*>(sums)};
}

template <typename T, int VEC, Kind KIND>
int64_t parts_by_length(BwdProblem& p) {
  return with_bwd_shape<T, VEC, KIND>(p, [&](auto shape) -> int64_t {
    using Shape = decltype(shape);
    if constexpr (std::is_same_v<Shape, Long>) {
      const int64_t most = ceil_div(p.sms * kTileBlocksPerSm, column_tiles<VEC>(p.n));
      return p.blocks = std::max<int64_t>(1, std::min(p.rows, most));
    } else {
      const BwdLaunch l = bwd_launch<T, Shape, KIND>(p.n);
      const int64_t tiles = std::max<int64_t>(1, ceil_div(p.rows, l.groups));
      p.blocks = bwd_blocks<Shape>(tiles, l.threads, p.sms);
      return Shape::MULTI_WARP ? parts_of(tiles, p.blocks, kRowsInTurn) : p.blocks;
    }
  });
}

template <typename T, typename W, int VEC, Kind KIND>
void bwd_by_length(const BwdArgs<T, W, KIND>& a, const BwdProblem& p) {
  const auto blocks = static_cast<unsigned>(p.blocks);
  with_bwd_shape<T, VEC, KIND>(p, [&](auto shape) {
    using Shape = decltype(shape);
    if constexpr (std::is_same_v<Shape, Long>) {
      constexpr int ITEMS = kTileItems<VEC>;
      const LongSlices slices = slices_of<VEC>(a.n, p.sums);
      if (a.wants_means()) {
        bwd_long_sums_kernel<T, W, VEC, KIND>
            <<<static_cast<unsigned>(a.rows * slices.count), kTileThreads, 0, p.stream>>>(a,
                                                                                          slices);
      }
      const dim3 grid(static_cast<unsigned>(column_tiles<VEC>(a.n)), blocks);
      bwd_long_kernel<T, W, VEC, ITEMS, KIND><<<grid, kTileThreads, 0, p.stream>>>(a, slices);
    } else {
      const BwdLaunch l = bwd_launch<T, Shape, KIND>(a.n);
      static PerDeviceCache done;
      constexpr auto kAttribute = cudaFuncAttributeMaxDynamicSharedMemorySize;
      if constexpr (VEC == 1) {
        const auto kernel = bwd_odd_kernel<T, W, Shape, KIND>;
        prepare(kernel, kAttribute, most_shared(), done);
        kernel<<<blocks, l.threads, l.shared, p.stream>>>(a, l.buffer_bytes);
      } else {
        const auto kernel = bwd_kernel<T, W, Shape, KIND>;
        prepare(kernel, kAttribute, most_shared(), done);
        kernel<<<blocks, l.threads, l.shared, p.stream>>>(a, l.log_row_threads, l.buffer_bytes);
      }
    }
  });
}

template <typename T, typename W>
bool bwd_is_wide(const BwdProblem& p) {
  return aligned<T>(p.x, p.x_stride) && aligned<T>(p.dy, p.dy_stride) && aligned<T>(p.dx, p.n) &&
         aligned<T>(p.added, p.added_stride) && aligned<T>(p.weight, 0);
}

// Calls f with the shape of the kernel for rows that no block holds, and how they are shared.
template <typename T, Kind KIND, typename F>
auto with_bwd_grid(const BwdProblem& p, const F& f) {
  constexpr int64_t kHeld = sizeof(T) == 2 ? 2 * kMaxBlock : 4 * kMaxBlock, kManyColumns = 1 << 18;
  const auto with = [&](auto shape) {
    const bool held = p.n / kVec<T> <= kHeld;
    return f(shape,
             held ? GridPlan{} : grid_plan<T, decltype(shape)>(p.rows, p.n, p.sms, kBuffers<KIND>));
  };
  if constexpr (sizeof(T) == 2) {
    if (p.n >= kManyColumns) return with(FullSlices<T>{});
  }
  return with(LargeSlices<T>{});
}

// Calls f with the elements of an access.
template <typename T, typename W, typename F>
auto with_bwd_vec(const BwdProblem& p, const F& f) {
  return bwd_is_wide<T, W>(p) ? f(std::integral_constant<int, kVec<T>>{})
                              : f(std::integral_constant<int, 1>{});
}

// Whether blocks of a persistent grid share the rows. Not those of a centred norm.
template <typename T, typename W, Kind KIND>
bool bwd_is_by_grid(const BwdProblem& p) {
  if constexpr (kIsCentred<KIND>) {
    return false;
  } else {
    return with_bwd_grid<T, KIND>(p, [&](auto shape, const GridPlan& plan) {
      using Shape = decltype(shape);
      return plan.size > 0 && p.rows > 0 && bwd_is_wide<T, W>(p) &&
             known_to_hold<bwd_grid_kernel<T, W, Shape, KIND>, Shape>();
    });
  }
}

// Those of a row's blocks or slices.
template <typename T, typename W, Kind KIND>
int64_t bwd_sums_typed(const BwdProblem& p) {
  if (bwd_is_by_grid<T, W, KIND>(p)) {
    return with_bwd_grid<T, KIND>(p,
                                  [&](auto, const GridPlan& plan) { return p.rows * plan.size; });
  }
  return with_bwd_vec<T, W>(p, [&](auto vec) {
    constexpr int VEC = decltype(vec)::value;
    return with_bwd_shape<T, VEC, KIND>(p, [&](auto shape) -> int64_t {
      if (!std::is_same_v<decltype(shape), Long>) return 0;
      return p.rows * slices_of<VEC>(p.n, nullptr).count * kSums<KIND>;
    });
  });
}

template <typename T, typename W, Kind KIND>
int64_t parts_typed(BwdProblem& p) {
  if (bwd_is_by_grid<T, W, KIND>(p)) {
    return with_bwd_grid<T, KIND>(p, [&](auto shape, const GridPlan& plan) {
      p.blocks = plan.groups;
      return parts_of(p.rows, p.blocks, kRowsInPart<decltype(shape)>);
    });
  }
  return with_bwd_vec<T, W>(
      p, [&](auto vec) { return parts_by_length<T, decltype(vec)::value, KIND>(p); });
}

// Whether the one part of each parameter is its gradient, so that nothing is left to be added up.
bool is_whole(const BwdProblem& p) { return p.rows > 0 && p.parts == 1; }

template <typename T, typename W, Kind KIND>
BwdArgs<T, W, KIND> bwd_args(const BwdProblem& p) {
  using S = Stat<T>;
  BwdArgs<T, W, KIND> a{};
  a.dy = static_cast<const T*>(p.dy);
  a.x = static_cast<const T*>(p.x);
  a.weight = static_cast<const W*>(p.weight);
  a.rstd = static_cast<const S*>(p.rstd);
  a.dx = static_cast<T*>(p.dx);
  // What is whole is written as W; where that is S, as the part is.
  const bool whole = is_whole(p), in_place = whole && std::is_same_v<W, S>;
  if (p.dweight) a.partial[0] = static_cast<S*>(in_place ? p.dweight : p.partial);
  if (whole) a.whole[0] = static_cast<W*>(p.dweight);
  a.rows = p.rows;
  a.dy_stride = p.dy_stride;
  a.x_stride = p.x_stride;
  a.n = p.n;
  a.inv_n = static_cast<S>(1.0 / static_cast<double>(p.n));
  a.weight_offset = static_cast<S>(p.weight_offset);
  if constexpr (KIND == Kind::kAdds) {
    a.added = static_cast<const T*>(p.added);
    a.added_stride = p.added_stride;
  }
  if constexpr (kIsCentred<KIND>) {
    a.mean = static_cast<const S*>(p.mean);
    S* const second = static_cast<S*>(p.partial) + (p.dweight ? p.parts * p.n : 0);
    if (p.dbias) a.partial[1] = in_place ? static_cast<S*>(p.dbias) : second;
    if (whole) a.whole[1] = static_cast<W*>(p.dbias);
  }
  return a;
}

template <typename T, typename W, Kind KIND>
void bwd_rows(const BwdProblem& p) {
  const BwdArgs<T, W, KIND> a = bwd_args<T, W, KIND>(p);
  if constexpr (!kIsCentred<KIND>) {
    if (bwd_is_by_grid<T, W, KIND>(p)) {
      return with_bwd_grid<T, KIND>(p, [&](auto shape, const GridPlan& plan) {
        using Shape = decltype(shape);
        launch_grid<T, Shape>(bwd_grid_kernel<T, W, Shape, KIND>, a, plan, kBuffers<KIND>, p.sums,
                              p.stream);
      });
    }
  }
  with_bwd_vec<T, W>(p, [&](auto vec) { bwd_by_length<T, W, decltype(vec)::value>(a, p); });
}

template <typename T, typename W, Kind KIND>
void bwd_typed(const BwdProblem& p) {
  if (p.rows) bwd_rows<T, W, KIND>(p);
  if ((!p.dweight && !p.dbias) || is_whole(p)) return;
  finish_columns<Stat<T>, W>(static_cast<const Stat<T>*>(p.partial), p.parts * p.n,
                             static_cast<int>(p.rows ? p.parts : 0), p.n,
                             static_cast<W*>(p.dweight ? p.dweight : p.dbias),
                             static_cast<W*>(p.dweight ? p.dbias : nullptr), p.stream);
}

}  // namespace
}  // namespace fuseline::rms
