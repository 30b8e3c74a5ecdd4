// Backward kernel of the norm for rows that 16 bytes do not divide, or that are misaligned.
#pragma once

#include "fuseline/cuda/norm/backward/rms_cuda_bwd.cuh"

namespace fuseline::rms {

template <typename T, typename W>
__device__ Tiles<T> addends(const BwdArgs<T, W, Kind::kAdds>& a) {
  return {a.added, a.rows, a.added_stride, static_cast<int>(a.n)};
}

// Number of tensors whose tiles are loaded.
template <typename T, typename W, Kind KIND>
__device__ int copies_of(const BwdArgs<T, W, KIND>& a) {
  if constexpr (KIND == Kind::kAdds) return a.added ? 3 : 2;
  return 2;
}

// Rows of which four warps have 32 columns in turn, or one warp all: the same sums in the same
// order.
template <typename S>
__device__ __forceinline__ S sum_of_four(S a, S b, S c, S d) {
  return (a + b) + (c + d);
}
template <int COUNT, typename S>
__device__ __forceinline__ void four_warps_sums(S (&sums)[COUNT], S* scratch) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) scratch[k * blockDim.x + threadIdx.x] = sums[k];
  __syncthreads();
  const int first = threadIdx.x / (4 * kWarp) * (4 * kWarp) + threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < COUNT; ++k) {
    const S* const of = scratch + k * blockDim.x + first;
    sums[k] = lanes_sum(sum_of_four(of[0], of[kWarp], of[2 * kWarp], of[3 * kWarp]), kWarp);
  }
}

// Rows that 16 bytes do not divide, or that are misaligned. Owns tiles blockIdx, blockIdx +
// gridDim, ... of one row for each ROW_THREADS threads of the block (or of one row, if
// ROW_IS_BLOCK) and all columns of them: a thread has lane, lane + row_threads, .... Reads x and dy
// once from memory, a tile ahead of need; writes dx by element and partial rows as bwd_kernel does.
// Few rows (BY_WARPS) leave a block no more than a tile, which comes without shared memory.
template <typename T, typename W, typename Shape, Kind KIND>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    bwd_odd_kernel(const __grid_constant__ BwdArgs<T, W, KIND> a, int buffer_bytes) {
  using S = Stat<T>;
  constexpr int ITEMS = Shape::ITEMS, STAGES = Shape::STAGES;
  constexpr int BUFFERS = kBuffers<KIND>;
  constexpr bool ROW_IS_BLOCK = Shape::MULTI_WARP, ADDS = KIND == Kind::kAdds;
  constexpr bool BY_WARPS = Shape::BY_WARPS;
  constexpr int SUMS = Shape::SUMS;
  constexpr bool CENTRED = kIsCentred<KIND>;
  extern __shared__ __align__(16) unsigned char smem[];
  __shared__ S scratch[2][kSums<KIND>][Shape::MAX_THREADS / kWarp];
  __shared__ Mbarrier barriers[STAGES];
  const int row_threads = ROW_IS_BLOCK ? blockDim.x : Shape::ROW_THREADS;
  const int lane = threadIdx.x % row_threads, group = threadIdx.x / row_threads;
  const int tile = blockDim.x / row_threads, n = static_cast<int>(a.n);
  const Tiles<T> xs{a.x, a.rows, a.x_stride, n}, dys{a.dy, a.rows, a.dy_stride, n};
  const int64_t step = static_cast<int64_t>(gridDim.x) * tile;
  int64_t first = static_cast<int64_t>(blockIdx.x) * tile, ahead = first;

  const auto load_async = [&](int stage) {
    if (!BY_WARPS && ahead < a.rows) {
      const int count = static_cast<int>(min(static_cast<int64_t>(tile), a.rows - ahead));
      xs.load_async(smem + BUFFERS * stage * buffer_bytes, ahead, count, barriers[stage]);
      dys.load_async(smem + (BUFFERS * stage + 1) * buffer_bytes, ahead, count, barriers[stage]);
      if constexpr (ADDS) {
        if (a.added)
          addends(a).load_async(smem + (3 * stage + 2) * buffer_bytes, ahead, count,
                                barriers[stage]);
      }
    }
    ahead += step;
  };
  if constexpr (!BY_WARPS) {
    if (threadIdx.x < STAGES) barriers[threadIdx.x].init(copies_of(a));
    __syncthreads();
    for (int stage = 0; stage < STAGES; ++stage) load_async(stage);
  }
  S weights[ITEMS], acc[kPlanes<KIND>][ITEMS][1] = {};
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = i * row_threads + lane;
    weights[i] = col < n && a.weight ? static_cast<S>(to_stat(a.weight[col])) + a.offset() : S(1);
  }
  if constexpr (!BY_WARPS) __syncthreads();

  int64_t part = blockIdx.x;
  Moments<S, KIND> moments_ahead;
  if (first + group < a.rows) moments_ahead = a.moments(first + group);
  int stage = 0, turn = 0;
  unsigned parity = 0;
  for (; first < a.rows; first += step) {
    const int64_t row = first + group;
    const int cols = row < a.rows ? n - lane : 0;  // of this thread: i * row_threads < cols
    const Moments<S, KIND> moments = moments_ahead;
    if (row + step < a.rows) moments_ahead = a.moments(row + step);
    if constexpr (!BY_WARPS) barriers[stage].wait(parity);
    const auto row_of = [&](const Tiles<T>& tensor, int which) -> const T* {
      if constexpr (BY_WARPS) {
        return tensor.begin + row * tensor.stride + lane;
      } else {
        return tensor.row(smem + (BUFFERS * stage + which) * buffer_bytes, first, group) + lane;
      }
    };
    const T *const x = row_of(xs, 0), *const dy = row_of(dys, 1), *added = nullptr;
    if constexpr (ADDS) {
      if (a.added) added = row_of(addends(a), 2);
    }
    S xhat[ITEMS], g[ITEMS], parts[SUMS][kSums<KIND>] = {};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = i * row_threads;
      xhat[i] = col < cols ? moments.xhat(to_stat(x[col])) : S(0);
      g[i] = col < cols ? to_stat(dy[col]) : S(0);
      if constexpr (CENTRED) {
        add<KIND>(parts[i % SUMS], g[i] * weights[i],
                  xhat[i]);  // g is dy until xhat's shift is known
        continue;
      }
      acc[0][i][0] += g[i] * xhat[i];
      g[i] *= weights[i];
      add<KIND>(parts[i % SUMS], g[i], xhat[i]);
      if constexpr (ADDS) {
        // dx but for what the mean takes off it: the tile will not be there for long.
        g[i] = fma(moments.rstd, g[i], added && col < cols ? to_stat(added[col]) : S(0));
      }
    }
    if constexpr (BY_WARPS) {
      S* const sums = reinterpret_cast<S*>(smem);
      four_warps_sums(parts[0], sums + stage * kSums<KIND> * blockDim.x);
    } else {
#pragma unroll
      for (int k = 0; k < kSums<KIND>; ++k) {
        if constexpr (SUMS == 4)
          parts[0][k] = sum_of_four(parts[0][k], parts[1][k], parts[2][k], parts[3][k]);
      }
      row_sums<ROW_IS_BLOCK>(parts[0], row_threads, scratch[stage]);
    }
    const auto means = means_of<KIND>(parts[0], a.inv_n);
    if constexpr (!ROW_IS_BLOCK && !BY_WARPS) __syncthreads();
    load_async(stage);  // all have read this tile
    if constexpr (CENTRED) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        add_centred(acc[0][i][0], acc[1][i][0], xhat[i], g[i], means.shift);
        g[i] *= weights[i];
      }
    }
    if (a.dx) {
      T* const dx = a.dx + row * a.n + lane;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int col = i * row_threads;
        if (col >= cols) continue;
        if constexpr (ADDS) {
          dx[col] = round_to<T, S>(g[i] - xhat[i] * (moments.rstd * means.product));
        } else {
          dx[col] = round_to<T, S>(gradient(xhat[i], g[i], moments.rstd, means));
        }
      }
    }
    stage ^= 1;
    parity ^= stage == 0;
    if (ROW_IS_BLOCK && a.wants_columns() &&
        (++turn % kRowsInTurn == 0 || first + step >= a.rows)) {
#pragma unroll
      for (int k = 0; k < kPlanes<KIND>; ++k) {
        if (a.partial[k]) write_part(acc[k], a.columns(k, part), lane, row_threads, n);
      }
      part += gridDim.x;
    }
  }
  if constexpr (!ROW_IS_BLOCK) {
#pragma unroll
    for (int k = 0; k < kPlanes<KIND>; ++k) {
      if (!a.partial[k]) continue;
      __syncthreads();
      write_rows<T, Shape>(acc[k], reinterpret_cast<S*>(smem), a.columns(k, part), n, row_threads);
    }
  }
}

}  // namespace fuseline::rms
