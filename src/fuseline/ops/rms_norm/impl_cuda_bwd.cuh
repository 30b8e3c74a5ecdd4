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

// g = dy * weight for one pack.
template <typename S, typename W, int VEC>
__device__ __forceinline__ Values<S, VEC> weighted(Values<S, VEC> dy, const W* weight,
                                                   int64_t col) {
  if (weight) {
    const Values<S, VEC> w = unpack<S>(load<W, VEC>(weight + col));
#pragma unroll
    for (int v = 0; v < VEC; ++v) dy.v[v] *= w.v[v];
  }
  return dy;
}

// dx for one pack, given mean(g * xhat) of its row.
template <typename T, typename S, int VEC>
__device__ __forceinline__ Pack<T, VEC> gradient(const Values<S, VEC>& x, Values<S, VEC> g, S rstd,
                                                 S mean) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) g.v[v] = rstd * (g.v[v] - x.v[v] * rstd * mean);
  return pack<T>(g);
}

// How a block works on rows: VEC elements an access, ITEMS accesses a thread, rows of several warps
// or of part of one.
template <int VEC_, int ITEMS_, bool MULTI_WARP_, int MAX_THREADS_, int MIN_BLOCKS_>
struct BwdShape {
  static constexpr int VEC = VEC_, ITEMS = ITEMS_;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool MULTI_WARP = MULTI_WARP_;
};

// Adds up the rows that a block held at once, warp by warp in shared memory, and writes the sum.
template <typename T, typename Shape>
__device__ __forceinline__ void write_partial(Stat<T> (&acc)[Shape::ITEMS][Shape::VEC],
                                              Stat<T>* partial, int n, int row_threads) {
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC;
  extern __shared__ __align__(16) unsigned char shared[];
  S* sums = reinterpret_cast<S*>(shared);
  const int first = threadIdx.x % row_threads * VEC, step = row_threads * VEC;
  const bool one_row = row_threads == blockDim.x;
  if constexpr (!Shape::MULTI_WARP) {
    for (int offset = kWarp / 2; offset >= row_threads; offset /= 2) {
#pragma unroll
      for (int i = 0; i < Shape::ITEMS; ++i) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) acc[i][v] += __shfl_xor_sync(kFullMask, acc[i][v], offset);
      }
    }
  }
  const int turn_threads = Shape::MULTI_WARP ? row_threads : kWarp;
  const int turns = one_row ? 1 : blockDim.x / turn_threads;
  for (int turn = 0; turn < turns; ++turn) {
    if (threadIdx.x / turn_threads == turn &&
        (Shape::MULTI_WARP || threadIdx.x % kWarp < row_threads)) {
#pragma unroll
      for (int i = 0; i < Shape::ITEMS; ++i) {
        const int col = first + i * step;
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          if (col >= n) continue;
          if (one_row) {
            partial[col + v] = acc[i][v];
          } else {
            sums[col + v] = turn ? sums[col + v] + acc[i][v] : acc[i][v];
          }
        }
      }
    }
    if (!one_row) __syncthreads();
  }
  if (one_row) return;
  for (int col = threadIdx.x; col < n; col += blockDim.x) partial[col] = sums[col];
}

// Owns rows blockIdx, blockIdx + gridDim, ... (times the rows a block holds at once) and, for
// them, all columns; reads x and dy once from memory; writes dx and one partial row of dweight.
// Needs n <= row_threads * ITEMS * VEC.
template <typename T, typename W, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    bwd_kernel(BwdArgs<T, W> a, int row_threads) {
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS;
  __shared__ S scratch[2][kWarp];
  const int lane = threadIdx.x % row_threads;
  const int group = threadIdx.x / row_threads;
  const int groups = blockDim.x / row_threads;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * groups;
  const int first = lane * VEC, step = row_threads * VEC;
  const int n = static_cast<int>(a.n);
  const S inv_n = S(1) / static_cast<S>(n);

  S acc[ITEMS][VEC] = {};
  // All groups of a block run the same number of rounds: sums need every lane.
  int64_t row = static_cast<int64_t>(blockIdx.x) * groups + group;
  int parity = 0;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < a.rows;
       base += row_step, row += row_step, parity ^= 1) {
    const bool active = row < a.rows;
    const S rstd = active ? a.rstd[row] : S(0);
    Pack<T, VEC> x_packs[ITEMS], dy_packs[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = first + i * step;
      if (active && col < n) {
        x_packs[i] = load<T, VEC>(a.x + row * a.x_stride + col);
        dy_packs[i] = load<T, VEC>(a.dy + row * a.dy_stride + col);
      }
    }
    S dot = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = first + i * step;
      if (active && col < n) {
        const Values<S, VEC> x = unpack<S>(x_packs[i]), dy = unpack<S>(dy_packs[i]);
        const Values<S, VEC> g = weighted<S, W, VEC>(dy, a.weight, col);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          const S xhat = x.v[v] * rstd;
          dot += g.v[v] * xhat;
          acc[i][v] += dy.v[v] * xhat;
        }
      }
    }
    const S mean = row_sum<Shape::MULTI_WARP>(dot, row_threads, scratch[parity]) * inv_n;
    if (active && a.dx) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int col = first + i * step;
        if (col < n) {
          const Values<S, VEC> g = weighted<S, W, VEC>(unpack<S>(dy_packs[i]), a.weight, col);
          store<T, VEC>(a.dx + row * a.n + col, gradient<T>(unpack<S>(x_packs[i]), g, rstd, mean));
        }
      }
    }
  }
  if (a.partial)
    write_partial<T, Shape>(acc, a.partial + static_cast<int64_t>(blockIdx.x) * a.n, n,
                            row_threads);
}

// Owns one row of any length; reads x and dy twice; writes dx. Sums as fwd_long_kernel does.
template <typename T, typename W, int VEC>
__global__ void __launch_bounds__(kMaxBlock, 1) bwd_long_dx_kernel(BwdArgs<T, W> a) {
  using S = Stat<T>;
  __shared__ double scratch[kWarp];
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.x_stride;
  const T* dy = a.dy + row * a.dy_stride;
  const S rstd = a.rstd[row];
  const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC;
  const int64_t step = static_cast<int64_t>(blockDim.x) * VEC;

  double dot = 0;
  for (int64_t start = first; start < a.n; start += kPacksAtOnce / 2 * step) {
    S part = 0;
#pragma unroll
    for (int i = 0; i < kPacksAtOnce / 2; ++i) {
      const int64_t col = start + i * step;
      if (col >= a.n) break;
      const Values<S, VEC> px = unpack<S>(load<T, VEC>(x + col));
      const Values<S, VEC> g =
          weighted<S, W, VEC>(unpack<S>(load<T, VEC>(dy + col)), a.weight, col);
#pragma unroll
      for (int v = 0; v < VEC; ++v) part += g.v[v] * (px.v[v] * rstd);
    }
    dot += part;
  }
  const S mean = static_cast<S>(row_sum<true>(dot, blockDim.x, scratch) / static_cast<double>(a.n));
#pragma unroll 2
  for (int64_t col = first; col < a.n; col += step) {
    const Values<S, VEC> g = weighted<S, W, VEC>(unpack<S>(load<T, VEC>(dy + col)), a.weight, col);
    store<T, VEC>(a.dx + row * a.n + col,
                  gradient<T>(unpack<S>(load<T, VEC>(x + col)), g, rstd, mean));
  }
}

// Owns blockDim * VEC columns and every gridDim.y-th row; writes one partial row for them. Sums of
// kRowsAtOnce rows are added in fp64: one long sum in fp32 would lose the budget's last bits.
template <typename T, typename W, int VEC>
__global__ void bwd_long_dweight_kernel(BwdArgs<T, W> a) {
  using S = Stat<T>;
  constexpr int kRowsAtOnce = 16;
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * VEC;
  if (col >= a.n) return;
  double total[VEC] = {};
  for (int64_t first = blockIdx.y; first < a.rows; first += int64_t{kRowsAtOnce} * gridDim.y) {
    S acc[VEC] = {};
#pragma unroll 4
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int64_t row = first + int64_t{gridDim.y} * i;
      if (row >= a.rows) break;
      const S rstd = a.rstd[row];
      const Values<S, VEC> x = unpack<S>(load<T, VEC>(a.x + row * a.x_stride + col));
      const Values<S, VEC> dy = unpack<S>(load<T, VEC>(a.dy + row * a.dy_stride + col));
#pragma unroll
      for (int v = 0; v < VEC; ++v) acc[v] += dy.v[v] * (x.v[v] * rstd);
    }
#pragma unroll
    for (int v = 0; v < VEC; ++v) total[v] += acc[v];
  }
#pragma unroll
  for (int v = 0; v < VEC; ++v) a.partial[blockIdx.y * a.n + col + v] = static_cast<S>(total[v]);
}

// Owns a warp's width of columns, blockDim.y threads each; reads all partial rows in a fixed
// order; writes dweight, rounded once. Adds in fp64: in fp32 these few sums of large numbers cost
// more accuracy than the many before them.
template <typename S, typename W>
__global__ void bwd_finish_kernel(const S* partial, int64_t parts, int64_t n, W* dweight) {
  __shared__ double sums[kWarp][kWarp];
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  double sum = 0;
  if (col < n) {
#pragma unroll 4
    for (int64_t part = threadIdx.y; part < parts; part += blockDim.y)
      sum += partial[part * n + col];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && col < n) {
    for (int y = 1; y < blockDim.y; ++y) sum += sums[y][threadIdx.x];
    dweight[col] = round_to<W, double>(sum);
  }
}

}  // namespace fuseline::rms_norm
