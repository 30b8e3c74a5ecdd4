// The backward of rows that no block can hold, and the sum of the partial rows of dweight.
#pragma once

#include "fuseline/rms_cuda_bwd.cuh"

namespace fuseline::rms {

// Owns one row of any length; reads x and dy twice; writes dx. Sums as fwd_long_kernel does.
template <typename T, typename W, int VEC, bool ADDS>
__global__ void __launch_bounds__(kMaxBlock, 1) bwd_long_dx_kernel(BwdArgs<T, W, ADDS> a) {
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
          weighted<S, W, VEC>(unpack<S>(load<T, VEC>(dy + col)), a.weight, a.weight_offset, col);
#pragma unroll
      for (int v = 0; v < VEC; ++v) part += g.v[v] * (px.v[v] * rstd);
    }
    dot += part;
  }
  const S mean = static_cast<S>(row_sum<true>(dot, blockDim.x, scratch) / static_cast<double>(a.n));
#pragma unroll 2
  for (int64_t col = first; col < a.n; col += step) {
    const Values<S, VEC> g =
        weighted<S, W, VEC>(unpack<S>(load<T, VEC>(dy + col)), a.weight, a.weight_offset, col);
    const Values<S, VEC> xhat = times(unpack<S>(load<T, VEC>(x + col)), rstd);
    const T* added = nullptr;
    if constexpr (ADDS) added = a.added + row * a.added_stride + col;
    store<T, VEC>(a.dx + row * a.n + col, sum_with(a, added, gradient(xhat, g, rstd, mean)));
  }
}

// Owns blockDim * VEC columns and every gridDim.y-th row; writes one partial row for them. Sums of
// kRowsAtOnce rows are added in fp64: one long sum in fp32 would lose the budget's last bits.
template <typename T, typename W, int VEC, bool ADDS>
__global__ void bwd_long_dweight_kernel(BwdArgs<T, W, ADDS> a) {
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

// Owns VEC columns a lane; reads all partial rows in a fixed order, warps side by side; writes
// dweight, rounded once. Adds in fp64: in fp32 these few sums of large numbers cost more accuracy
// than the many before them.
template <typename S, typename W, int VEC, int WARPS>
__global__ void __launch_bounds__(WARPS* kWarp)
    bwd_finish_kernel(const S* partial, int parts, int64_t n, W* dweight) {
  constexpr int COLS = kWarp * VEC, AT_ONCE = 8;
  __shared__ double sums[WARPS][COLS];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * COLS, col = first + lane * VEC;
  double sum[VEC] = {};
  for (int start = warp; start < parts; start += AT_ONCE * WARPS) {
    Pack<S, VEC> loaded[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int part = start + i * WARPS;
      loaded[i] = Pack<S, VEC>{};
      if (part < parts && col < n) loaded[i] = load<S, VEC>(partial + part * n + col);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) sum[v] += loaded[i].v[v];
    }
  }
#pragma unroll
  for (int v = 0; v < VEC; ++v) sums[warp][lane * VEC + v] = sum[v];
  __syncthreads();
  const int mine = threadIdx.x;
  if (mine >= COLS || first + mine >= n) return;
  double total = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) total += sums[w][mine];
  dweight[first + mine] = round_to<W, double>(total);
}

}  // namespace fuseline::rms
