// Chooses kernel and block by row length and alignment only, so that a row's result does not
// depend on the batch. Included once per dtype of x.
#pragma once

#include <algorithm>

#include "impl_cuda_bwd.cuh"
#include "impl_cuda_fwd.cuh"
#include "impl_cuda_launch.h"

namespace fuseline::rms_norm {
namespace {

constexpr int kPartialTarget = 4;  // blocks an SM for the column kernel of long rows

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
  return static_cast<int>(std::min<int64_t>(kMaxBlock, ceil_div(ceil_div(packs, items), kWarp) * kWarp));
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
  fwd_kernel<T, W, VEC, ITEMS, true><<<static_cast<unsigned>(a.rows), threads, 0, stream>>>(a, threads);
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
  const FwdArgs<T, W> a{static_cast<const T*>(p.x),  static_cast<const W*>(p.weight),
                        static_cast<T*>(p.y),        static_cast<Stat<T>*>(p.rstd),
                        p.rows,                      p.x_stride,
                        p.n,                         p.eps};
  const bool wide = aligned<T>(p.x, p.x_stride) && aligned<T>(p.y, p.n) && aligned<T>(p.weight, 0);
  wide ? fwd_by_length<T, W, kVec<T>>(a, p.stream) : fwd_by_length<T, W, 1>(a, p.stream);
  return cudaGetLastError();
}

// One backward regime: how many threads a row, how many rows a block, how many blocks.
struct BwdPlan {
  int row_threads;
  int threads;
  int64_t blocks;
};

enum class BwdRegime { kWarp1, kWarp2, kBlock2, kBlock8, kReload4, kReload8, kReload16, kLong };

// Accumulators cost 4 bytes (fp64: 8) a column a thread: what fits 64 registers at 1024 threads.
template <typename T, int VEC>
BwdRegime bwd_regime(int64_t packs) {
  if (packs <= kWarp) return BwdRegime::kWarp1;
  if (packs <= 2 * kWarp) return BwdRegime::kWarp2;
  if constexpr (VEC == 1) {
    if (packs <= 8 * kMaxBlock / 2) return BwdRegime::kBlock8;
    if (packs <= (sizeof(T) == 8 ? 8 : 16) * kMaxBlock) {
      return sizeof(T) == 8 ? BwdRegime::kReload8 : BwdRegime::kReload16;
    }
  } else {
    if (packs <= 2 * kMaxBlock / 2) return BwdRegime::kBlock2;
    if (packs <= 4 * kMaxBlock) return BwdRegime::kReload4;
    if (VEC <= 4 && packs <= 8 * kMaxBlock) return BwdRegime::kReload8;
  }
  return BwdRegime::kLong;
}

template <typename T, typename W, int VEC, int ITEMS, bool ROW_IS_BLOCK, bool KEEP>
BwdPlan bwd_plan(int64_t packs, int64_t rows, int sms) {
  BwdPlan plan{};
  plan.row_threads = ROW_IS_BLOCK ? block_for(packs, ITEMS) : std::min(kWarp, pow2_at_least(packs));
  plan.threads = ROW_IS_BLOCK ? plan.row_threads : kSmallBlock;
  int per_sm = 1;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &per_sm, bwd_kernel<T, W, VEC, ITEMS, ROW_IS_BLOCK, KEEP>, plan.threads, 0);
  const int64_t rows_a_block = plan.threads / plan.row_threads;
  plan.blocks = std::max<int64_t>(
      1, std::min<int64_t>(static_cast<int64_t>(sms) * std::max(per_sm, 1), ceil_div(rows, rows_a_block)));
  return plan;
}

template <typename T, typename W>
void finish(const BwdProblem& p, int64_t parts) {
  const dim3 threads(kWarp, kWarp / 2);
  bwd_finish_kernel<Stat<T>, W><<<static_cast<unsigned>(ceil_div(p.n, kWarp)), threads, 0, p.stream>>>(
      static_cast<const Stat<T>*>(p.partial), parts, p.n, static_cast<W*>(p.dweight));
}

// `sms` > 0: only tell the number of partial rows. Else launch, with the buffer of that many.
template <typename T, typename W, int VEC, int ITEMS, bool ROW_IS_BLOCK, bool KEEP>
int64_t bwd_run(const BwdArgs<T, W>& a, int64_t packs, const BwdProblem& p, int sms) {
  if (sms) return bwd_plan<T, W, VEC, ITEMS, ROW_IS_BLOCK, KEEP>(packs, a.rows, sms).blocks;
  const int row_threads =
      ROW_IS_BLOCK ? block_for(packs, ITEMS) : std::min(kWarp, pow2_at_least(packs));
  const int threads = ROW_IS_BLOCK ? row_threads : kSmallBlock;
  const size_t shared = ROW_IS_BLOCK || !a.partial ? 0 : static_cast<size_t>(a.n) * sizeof(Stat<T>);
  if (a.rows == 0) return p.parts;
  bwd_kernel<T, W, VEC, ITEMS, ROW_IS_BLOCK, KEEP>
      <<<static_cast<unsigned>(p.parts), threads, shared, p.stream>>>(a, row_threads);
  return p.parts;
}

template <typename T, typename W, int VEC>
int64_t bwd_long(const BwdArgs<T, W>& a, const BwdProblem& p, int sms) {
  constexpr int kThreads = 256;
  const int64_t tiles = ceil_div(a.n, static_cast<int64_t>(kThreads) * VEC);
  if (sms) return std::max<int64_t>(1, std::min<int64_t>(a.rows, ceil_div(sms * kPartialTarget, tiles)));
  if (a.rows == 0) return p.parts;
  if (a.dx) {
    bwd_long_dx_kernel<T, W, VEC><<<static_cast<unsigned>(a.rows), kMaxBlock, 0, p.stream>>>(a);
  }
  if (a.partial) {
    const dim3 grid(static_cast<unsigned>(tiles), static_cast<unsigned>(p.parts));
    bwd_long_dweight_kernel<T, W, VEC><<<grid, kThreads, 0, p.stream>>>(a);
  }
  return p.parts;
}

template <typename T, typename W, int VEC>
int64_t bwd_by_length(const BwdArgs<T, W>& a, const BwdProblem& p, int sms) {
  const int64_t packs = ceil_div(a.n, VEC);
  switch (bwd_regime<T, VEC>(packs)) {
    case BwdRegime::kWarp1: return bwd_run<T, W, VEC, 1, false, true>(a, packs, p, sms);
    case BwdRegime::kWarp2: return bwd_run<T, W, VEC, 2, false, true>(a, packs, p, sms);
    case BwdRegime::kBlock2:
      if constexpr (VEC > 1) return bwd_run<T, W, VEC, 2, true, true>(a, packs, p, sms);
      break;
    case BwdRegime::kBlock8:
      if constexpr (VEC == 1) return bwd_run<T, W, VEC, 8, true, true>(a, packs, p, sms);
      break;
    case BwdRegime::kReload4:
      if constexpr (VEC > 1) return bwd_run<T, W, VEC, 4, true, false>(a, packs, p, sms);
      break;
    case BwdRegime::kReload8:
      if constexpr (VEC <= 4 && (VEC > 1 || sizeof(T) == 8)) {
        return bwd_run<T, W, VEC, 8, true, false>(a, packs, p, sms);
      }
      break;
    case BwdRegime::kReload16:
      if constexpr (VEC == 1 && sizeof(T) < 8) {
        return bwd_run<T, W, VEC, 16, true, false>(a, packs, p, sms);
      }
      break;
    case BwdRegime::kLong: break;
  }
  return bwd_long<T, W, VEC>(a, p, sms);
}

template <typename T, typename W>
int64_t bwd_typed(const BwdProblem& p, int sms) {
  const BwdArgs<T, W> a{static_cast<const T*>(p.dy),
                        static_cast<const T*>(p.x),
                        static_cast<const W*>(p.weight),
                        static_cast<const Stat<T>*>(p.rstd),
                        static_cast<T*>(p.dx),
                        static_cast<Stat<T>*>(p.partial),
                        p.rows,
                        p.dy_stride,
                        p.x_stride,
                        p.n};
  const bool wide = aligned<T>(p.x, p.x_stride) && aligned<T>(p.dy, p.dy_stride) &&
                    aligned<T>(p.dx, p.n) && aligned<T>(p.weight, 0);
  const int64_t parts =
      wide ? bwd_by_length<T, W, kVec<T>>(a, p, sms) : bwd_by_length<T, W, 1>(a, p, sms);
  if (!sms && p.dweight) finish<T, W>(p, p.rows ? parts : 0);
  return parts;
}

}  // namespace

template <typename T>
cudaError_t launch_fwd(const FwdProblem& p) {
  return p.weight_type == WeightType::kSame ? fwd_typed<T, T>(p) : fwd_typed<T, float>(p);
}

template <typename T>
cudaError_t launch_bwd(const BwdProblem& p) {
  p.weight_type == WeightType::kSame ? bwd_typed<T, T>(p, 0) : bwd_typed<T, float>(p, 0);
  return cudaGetLastError();
}

template <typename T>
int64_t bwd_parts(const BwdProblem& p, int sm_count) {
  return p.weight_type == WeightType::kSame ? bwd_typed<T, T>(p, sm_count)
                                            : bwd_typed<T, float>(p, sm_count);
}

}  // namespace fuseline::rms_norm

#define FUSELINE_RMS_NORM_INSTANTIATE(T)                                     \
  template cudaError_t fuseline::rms_norm::launch_fwd<T>(const FwdProblem&); \
  template cudaError_t fuseline::rms_norm::launch_bwd<T>(const BwdProblem&); \
  template int64_t fuseline::rms_norm::bwd_parts<T>(const BwdProblem&, int);
