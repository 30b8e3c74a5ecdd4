// Backward kernels of rms_norm. With xhat = x * rstd and g = dy * weight:
//   dx = rstd * (g - xhat * mean(g * xhat)),   dweight = sum over rows of dy * xhat.
// Weight gradients are summed without atomics: registers -> one partial row a block -> finish.
#pragma once

#include "impl_cuda.cuh"

namespace fuseline::rms_norm {

// Rows of dy and x with one stride each; dx is contiguous, partial is (blocks, n). weight may be
// null; a null dx or partial is a gradient that nobody asked for.
template <typename T, typename W>
struct BwdArgs {
  const T* dy;
  const T* x;
  const W* weight;
  const Stat<T>* rstd;
  T* dx;
  Stat<T>* partial;
  int64_t rows;
  int64_t dy_stride;
  int64_t x_stride;
  int64_t n;
};

template <typename T, typename W, int VEC>
__device__ __forceinline__ Stat<T> weighted(const Pack<T, VEC>& dy, const Pack<W, VEC>& w, int v,
                                            bool has_weight) {
  using S = Stat<T>;
  return has_weight ? to_stat(dy.v[v]) * static_cast<S>(to_stat(w.v[v])) : to_stat(dy.v[v]);
}

// Owns rows blockIdx, blockIdx + gridDim, ... (times the rows a block holds at once) and, for
// them, all columns; reads x and dy once from memory, the next row while this one is reduced;
// writes dx and one partial row of dweight. KEEP: x and dy stay in registers between the two
// passes over a row, else they come again from L2. Needs n <= row_threads * ITEMS * VEC.
template <typename T, typename W, int VEC, int ITEMS, bool ROW_IS_BLOCK, bool KEEP>
__global__ void __launch_bounds__(!ROW_IS_BLOCK ? kSmallBlock : KEEP ? kMaxBlock / 2 : kMaxBlock, 1)
    bwd_kernel(BwdArgs<T, W> a, int row_threads) {
  using S = Stat<T>;
  constexpr int KEPT = KEEP ? ITEMS : 1;
  __shared__ S scratch[2][kWarp];
  const int lane = ROW_IS_BLOCK ? threadIdx.x : threadIdx.x % row_threads;
  const int group = ROW_IS_BLOCK ? 0 : threadIdx.x / row_threads;
  const int groups = ROW_IS_BLOCK ? 1 : blockDim.x / row_threads;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * groups;
  const int n = static_cast<int>(a.n);
  const S inv_n = S(1) / static_cast<S>(n);
  const bool has_weight = a.weight != nullptr;

  Pack<W, VEC> w[KEPT] = {};
  S acc[ITEMS][VEC] = {};
  Pack<T, VEC> x[KEPT], dy[KEPT];
  S rstd = 0;
  int64_t row = static_cast<int64_t>(blockIdx.x) * groups + group;
  if constexpr (KEEP) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = (i * row_threads + lane) * VEC;
      if (has_weight && col < n) w[i] = load<W, VEC>(a.weight + col);
      if (row < a.rows && col < n) {
        x[i] = load<T, VEC>(a.x + row * a.x_stride + col);
        dy[i] = load<T, VEC>(a.dy + row * a.dy_stride + col);
      }
    }
  }
  if (row < a.rows) rstd = a.rstd[row];

  // All groups of a block run the same number of rounds: the warp's shuffles need every lane.
  int parity = 0;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < a.rows;
       base += row_step, row += row_step, parity ^= 1) {
    const bool active = row < a.rows;
    const int64_t next = row + row_step;
    Pack<T, VEC> next_x[KEPT], next_dy[KEPT];
    S next_rstd = 0;
    if (next < a.rows) {
      next_rstd = a.rstd[next];
      if constexpr (KEEP) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
          const int col = (i * row_threads + lane) * VEC;
          if (col < n) {
            next_x[i] = load<T, VEC>(a.x + next * a.x_stride + col);
            next_dy[i] = load<T, VEC>(a.dy + next * a.dy_stride + col);
          }
        }
      }
    }
    S dot = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = (i * row_threads + lane) * VEC;
      const int k = KEEP ? i : 0;
      if (active && col < n) {
        if constexpr (!KEEP) {
          x[0] = load<T, VEC>(a.x + row * a.x_stride + col);
          dy[0] = load<T, VEC>(a.dy + row * a.dy_stride + col);
          if (has_weight) w[0] = load<W, VEC>(a.weight + col);
        }
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const S xhat = to_stat(x[k].v[v]) * rstd;
          dot += weighted<T, W, VEC>(dy[k], w[k], v, has_weight) * xhat;
          acc[i][v] += to_stat(dy[k].v[v]) * xhat;
        }
      }
    }
    const S mean = row_sum<ROW_IS_BLOCK>(dot, row_threads, scratch[parity]) * inv_n;
    if (active && a.dx) {
      T* dx = a.dx + row * a.n;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int col = (i * row_threads + lane) * VEC;
        const int k = KEEP ? i : 0;
        if (col < n) {
          if constexpr (!KEEP) {
            x[0] = load<T, VEC>(a.x + row * a.x_stride + col);
            dy[0] = load<T, VEC>(a.dy + row * a.dy_stride + col);
            if (has_weight) w[0] = load<W, VEC>(a.weight + col);
          }
          Pack<T, VEC> out;
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            const S xhat = to_stat(x[k].v[v]) * rstd;
            const S g = weighted<T, W, VEC>(dy[k], w[k], v, has_weight);
            out.v[v] = round_to<T, S>(rstd * (g - xhat * mean));
          }
          store<T, VEC>(dx + col, out);
        }
      }
    }
    rstd = next_rstd;
    if constexpr (KEEP) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        x[i] = next_x[i];
        dy[i] = next_dy[i];
      }
    }
  }

  if (!a.partial) return;
  S* partial = a.partial + static_cast<int64_t>(blockIdx.x) * a.n;
  if constexpr (ROW_IS_BLOCK) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = (i * row_threads + lane) * VEC;
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if (col < n) partial[col + v] = acc[i][v];
      }
    }
  } else {
    extern __shared__ __align__(16) unsigned char shared[];
    S* sums = reinterpret_cast<S*>(shared);
    for (int g = 0; g < groups; ++g) {
      if (g == group) {
#pragma unroll
        for (int i = 0; i < ITEMS; ++i) {
          const int col = (i * row_threads + lane) * VEC;
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            if (col < n) sums[col + v] = g ? sums[col + v] + acc[i][v] : acc[i][v];
          }
        }
      }
      __syncthreads();
    }
    for (int col = threadIdx.x; col < n; col += blockDim.x) partial[col] = sums[col];
  }
}

// Owns one row of any length; reads x and dy twice; writes dx.
template <typename T, typename W, int VEC>
__global__ void __launch_bounds__(kMaxBlock, 1) bwd_long_dx_kernel(BwdArgs<T, W> a) {
  using S = Stat<T>;
  __shared__ S scratch[kWarp];
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.x_stride;
  const T* dy = a.dy + row * a.dy_stride;
  const S rstd = a.rstd[row];
  const bool has_weight = a.weight != nullptr;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC;
  const int64_t step = static_cast<int64_t>(blockDim.x) * VEC;
  Pack<W, VEC> w = {};

  S dot = 0;
#pragma unroll 2
  for (int64_t col = first; col < a.n; col += step) {
    const Pack<T, VEC> px = load<T, VEC>(x + col), pdy = load<T, VEC>(dy + col);
    if (has_weight) w = load<W, VEC>(a.weight + col);
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      dot += weighted<T, W, VEC>(pdy, w, v, has_weight) * (to_stat(px.v[v]) * rstd);
    }
  }
  const S mean = row_sum<true>(dot, blockDim.x, scratch) / static_cast<S>(a.n);
#pragma unroll 2
  for (int64_t col = first; col < a.n; col += step) {
    const Pack<T, VEC> px = load<T, VEC>(x + col), pdy = load<T, VEC>(dy + col);
    if (has_weight) w = load<W, VEC>(a.weight + col);
    Pack<T, VEC> out;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const S g = weighted<T, W, VEC>(pdy, w, v, has_weight);
      out.v[v] = round_to<T, S>(rstd * (g - to_stat(px.v[v]) * rstd * mean));
    }
    store<T, VEC>(a.dx + row * a.n + col, out);
  }
}

// Owns blockDim * VEC columns and every gridDim.y-th row; writes one partial row for them.
template <typename T, typename W, int VEC>
__global__ void bwd_long_dweight_kernel(BwdArgs<T, W> a) {
  using S = Stat<T>;
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * VEC;
  if (col >= a.n) return;
  S acc[VEC] = {};
#pragma unroll 4
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const S rstd = a.rstd[row];
    const Pack<T, VEC> px = load<T, VEC>(a.x + row * a.x_stride + col);
    const Pack<T, VEC> pdy = load<T, VEC>(a.dy + row * a.dy_stride + col);
#pragma unroll
    for (int v = 0; v < VEC; ++v) acc[v] += to_stat(pdy.v[v]) * (to_stat(px.v[v]) * rstd);
  }
#pragma unroll
  for (int v = 0; v < VEC; ++v) a.partial[blockIdx.y * a.n + col + v] = acc[v];
}

// Owns a warp's width of columns, blockDim.y threads each; reads all partial rows in a fixed
// order; writes dweight, rounded once.
template <typename S, typename W>
__global__ void bwd_finish_kernel(const S* partial, int64_t parts, int64_t n, W* dweight) {
  __shared__ S sums[kWarp][kWarp];
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  S sum = 0;
  if (col < n) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += blockDim.y) sum += partial[part * n + col];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && col < n) {
    for (int y = 1; y < blockDim.y; ++y) sum += sums[y][threadIdx.x];
    dweight[col] = round_to<W, S>(sum);
  }
}

}  // namespace fuseline::rms_norm
