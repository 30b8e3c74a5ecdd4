// Chooses kernel and block by row length and alignment only, so that a row's result does not
// depend on the batch. Included once per dtype of x.
#pragma once

#include <algorithm>

#include "impl_cuda_bwd.cuh"
#include "impl_cuda_fwd.cuh"
#include "impl_cuda_launch.h"

namespace fuseline::rms_norm {
namespace {

constexpr int kHalfBlock = kMaxBlock / 2;

int pow2_at_least(int64_t v) {
  int p = 1;
  while (p < v) p *= 2;
  return p;
}
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Elements a 16-byte access holds; 1 where a pointer, a stride or the row length breaks alignment.
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

template <typename T, typename W, int VEC, int ITEMS>
void fwd_warp(const FwdArgs<T, W>& a, int64_t packs, cudaStream_t stream) {
  const int row_threads = std::min(kWarp, pow2_at_least(packs));
  const int64_t blocks = ceil_div(a.rows, kSmallBlock / row_threads);
  fwd_kernel<T, W, VEC, ITEMS, false>
      <<<static_cast<unsigned>(blocks), kSmallBlock, 0, stream>>>(a, row_threads);
}

template <typename T, typename W, int VEC, int ITEMS>
void fwd_block(const FwdArgs<T, W>& a, int64_t packs, cudaStream_t stream) {
  const int threads = block_for(packs, ITEMS);
  fwd_kernel<T, W, VEC, ITEMS, true>
      <<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a, threads);
}

template <typename T, typename W, int VEC>
void fwd_by_length(const FwdArgs<T, W>& a, cudaStream_t s) {
  const int64_t packs = ceil_div(a.n, VEC);
  if (packs <= kWarp) return fwd_warp<T, W, VEC, 1>(a, packs, s);
  if (packs <= 2 * kWarp) return fwd_warp<T, W, VEC, 2>(a, packs, s);
  if (packs <= 4 * kWarp) return fwd_warp<T, W, VEC, 4>(a, packs, s);
  if (packs <= 4 * kMaxBlock) return fwd_block<T, W, VEC, 4>(a, packs, s);
  if (packs <= 8 * kMaxBlock) return fwd_block<T, W, VEC, 8>(a, packs, s);
  fwd_long_kernel<T, W, VEC><<<static_cast<unsigned>(a.rows), kMaxBlock, 0, s>>>(a);
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
                        p.eps};
  const bool wide = aligned<T>(p.x, p.x_stride) && aligned<T>(p.y, p.n) && aligned<T>(p.weight, 0);
  wide ? fwd_by_length<T, W, kVec<T>>(a, p.stream) : fwd_by_length<T, W, 1>(a, p.stream);
  return cudaGetLastError();
}

struct Long {};  // rows that no block can hold

// Calls f with the BwdShape for rows of `packs` accesses, or with Long. The table in the
// operator's README has the measurements: 64 registers a thread, and so two blocks of 512 an SM,
// beat loading the next row ahead (fewer warps) and reading a row twice.
template <typename T, int VEC, typename F>
auto with_bwd_shape(int64_t packs, const F& f) {
  constexpr int kItems = VEC > 1 ? 2 : sizeof(T) == 8 ? 4 : 8;
  if (packs <= kWarp) return f(BwdShape<VEC, 1, false, kHalfBlock, 1>{});
  if (packs <= 2 * kWarp) return f(BwdShape<VEC, 2, false, kHalfBlock, 1>{});
  if (packs <= kItems * kHalfBlock) return f(BwdShape<VEC, kItems, true, kHalfBlock, 2>{});
  if (packs <= kItems * kMaxBlock) return f(BwdShape<VEC, kItems, true, kMaxBlock, 1>{});
  return f(Long{});
}

template <typename Shape>
int row_threads_of(int64_t packs) {
  return Shape::MULTI_WARP ? block_for(packs, Shape::ITEMS) : std::min(kWarp, pow2_at_least(packs));
}

// Threads of a block: as many whole rows as it may hold.
template <typename Shape>
int threads_of(int row_threads) {
  return Shape::MAX_THREADS / row_threads * row_threads;
}

// Column tiles of the kernels for long rows, and the blocks that share the rows of each.
constexpr int kTileThreads = 256;
constexpr int kTileBlocksPerSm = 4;
template <int VEC>
int64_t column_tiles(int64_t n) {
  return ceil_div(n, static_cast<int64_t>(kTileThreads) * VEC);
}

// Rows that a thread adds to its part of dweight in fp32; more of them go to another block, and the
// parts are added in fp64. A longer sum of like terms errs in one direction.
constexpr int64_t kRowsInTurn = 64;

template <typename T, typename W, int VEC>
int64_t parts_by_length(const BwdProblem& p, int sms) {
  const int64_t packs = ceil_div(p.n, VEC);
  return with_bwd_shape<T, VEC>(packs, [&](auto shape) -> int64_t {
    using Shape = decltype(shape);
    int64_t blocks, most;
    if constexpr (std::is_same_v<Shape, Long>) {
      blocks = p.rows;
      most = ceil_div(sms * kTileBlocksPerSm, column_tiles<VEC>(p.n));
    } else {
      const int row_threads = row_threads_of<Shape>(packs);
      const int threads = threads_of<Shape>(row_threads);
      int per_sm = 1;
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, bwd_kernel<T, W, Shape>, threads, 0);
      blocks = ceil_div(p.rows, threads / row_threads);
      const int64_t wave = static_cast<int64_t>(sms) * std::max(per_sm, 1);
      most = wave * std::max<int64_t>(1, ceil_div(blocks, wave * kRowsInTurn));
    }
    return std::max<int64_t>(1, std::min(blocks, most));
  });
}

template <typename T, typename W, int VEC>
void bwd_by_length(const BwdArgs<T, W>& a, const BwdProblem& p) {
  const int64_t packs = ceil_div(a.n, VEC);
  const auto parts = static_cast<unsigned>(p.parts);
  with_bwd_shape<T, VEC>(packs, [&](auto shape) {
    using Shape = decltype(shape);
    if constexpr (std::is_same_v<Shape, Long>) {
      if (a.dx) {
        bwd_long_dx_kernel<T, W, VEC><<<static_cast<unsigned>(a.rows), kMaxBlock, 0, p.stream>>>(a);
      }
      if (a.partial) {
        const dim3 grid(static_cast<unsigned>(column_tiles<VEC>(a.n)), parts);
        bwd_long_dweight_kernel<T, W, VEC><<<grid, kTileThreads, 0, p.stream>>>(a);
      }
    } else {
      const int row_threads = row_threads_of<Shape>(packs);
      const int threads = threads_of<Shape>(row_threads);
      const bool shared = a.partial && threads > row_threads;
      bwd_kernel<T, W, Shape>
          <<<parts, threads, shared ? a.n * sizeof(Stat<T>) : 0, p.stream>>>(a, row_threads);
    }
  });
}

template <typename T, typename W>
bool bwd_is_wide(const BwdProblem& p) {
  return aligned<T>(p.x, p.x_stride) && aligned<T>(p.dy, p.dy_stride) && aligned<T>(p.dx, p.n) &&
         aligned<T>(p.weight, 0);
}

template <typename T, typename W>
int64_t parts_typed(const BwdProblem& p, int sms) {
  return bwd_is_wide<T, W>(p) ? parts_by_length<T, W, kVec<T>>(p, sms)
                              : parts_by_length<T, W, 1>(p, sms);
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
                          p.n};
    bwd_is_wide<T, W>(p) ? bwd_by_length<T, W, kVec<T>>(a, p) : bwd_by_length<T, W, 1>(a, p);
  }
  if (p.dweight) {
    const auto tiles = static_cast<unsigned>(ceil_div(p.n, kWarp));
    bwd_finish_kernel<S, W><<<tiles, dim3(kWarp, kWarp), 0, p.stream>>>(
        static_cast<const S*>(p.partial), p.rows ? p.parts : 0, p.n, static_cast<W*>(p.dweight));
  }
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
int64_t bwd_parts(const BwdProblem& p, int sms) {
  return p.weight_type == WeightType::kSame ? parts_typed<T, T>(p, sms)
                                            : parts_typed<T, float>(p, sms);
}

}  // namespace fuseline::rms_norm

#define FUSELINE_RMS_NORM_INSTANTIATE(T)                                     \
  template cudaError_t fuseline::rms_norm::launch_fwd<T>(const FwdProblem&); \
  template cudaError_t fuseline::rms_norm::launch_bwd<T>(const BwdProblem&); \
  template int64_t fuseline::rms_norm::bwd_parts<T>(const BwdProblem&, int);
