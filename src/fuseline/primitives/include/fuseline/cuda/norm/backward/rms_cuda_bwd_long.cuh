// The backward of rows that no block can hold.
#pragma once

#include "fuseline/cuda/norm/backward/rms_cuda_bwd.cuh"

namespace fuseline::rms {

// Owns one row of any length; reads x and dy twice; writes dx and, of a centred norm, the shift.
// Sums as fwd_long_kernel does.
template <typename T, typename W, int VEC, Kind KIND>
__global__ void __launch_bounds__(kMaxBlock, 1) bwd_long_dx_kernel(BwdArgs<T, W, KIND> a) {
  using S = Stat<T>;
  constexpr int SUMS = kSums<KIND>;
  __shared__ double scratch[SUMS][kWarp];
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.x_stride;
  const T* dy = a.dy + row * a.dy_stride;
  const Moments<S, KIND> moments = a.moments(row);
  const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC;
  const int64_t step = static_cast<int64_t>(blockDim.x) * VEC;

  double sums[SUMS] = {};
  for (int64_t start = first; start < a.n; start += kPacksAtOnce / 2 * step) {
    S parts[SUMS] = {};
#pragma unroll
    for (int i = 0; i < kPacksAtOnce / 2; ++i) {
      const int64_t col = start + i * step;
      if (col >= a.n) break;
      const Values<S, VEC> px = unpack<S>(load<T, VEC>(x + col));
      const Values<S, VEC> g =
          weighted<S, W, VEC>(unpack<S>(load<T, VEC>(dy + col)), a.weight, a.offset(), col);
#pragma unroll
      for (int v = 0; v < VEC; ++v) add<KIND>(parts, g.v[v], moments.xhat(px.v[v]));
    }
#pragma unroll
    for (int k = 0; k < SUMS; ++k) sums[k] += parts[k];
  }
  row_sums<true>(sums, blockDim.x, scratch);
#pragma unroll
  for (double& sum : sums) sum /= static_cast<double>(a.n);
  const Means<S, KIND> means(sums);
  if constexpr (kIsCentred<KIND>) {
    if (threadIdx.x == 0 && a.shift) a.shift[row] = means.shift;
    if (!a.dx) return;
  }
#pragma unroll 2
  for (int64_t col = first; col < a.n; col += step) {
    const Values<S, VEC> g =
        weighted<S, W, VEC>(unpack<S>(load<T, VEC>(dy + col)), a.weight, a.offset(), col);
    Values<S, VEC> xhat = normalised(unpack<S>(load<T, VEC>(x + col)), moments);
    if constexpr (kIsCentred<KIND>) {
#pragma unroll
      for (S& v : xhat.v) v -= means.shift;
    }
    const T* added = nullptr;
    if constexpr (KIND == Kind::kAdds) added = a.added + row * a.added_stride + col;
    const Values<S, VEC> own = gradient(xhat, g, moments.rstd, means);
    store<T, VEC>(a.dx + row * a.n + col, sum_with(a, added, own));
  }
}

// Owns blockDim * VEC columns and every gridDim.y-th row; writes one partial row of each plane for
// them. Sums of kRowsAtOnce rows are added in fp64: one long sum in fp32 would lose the budget's
// last bits.
template <typename T, typename W, int VEC, Kind KIND>
__global__ void bwd_long_columns_kernel(BwdArgs<T, W, KIND> a) {
  using S = Stat<T>;
  constexpr int kRowsAtOnce = 16, PLANES = kPlanes<KIND>;
  const int64_t col = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * VEC;
  if (col >= a.n) return;
  double total[PLANES][VEC] = {};
  for (int64_t first = blockIdx.y; first < a.rows; first += int64_t{kRowsAtOnce} * gridDim.y) {
    S acc[PLANES][VEC] = {};
#pragma unroll 4
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int64_t row = first + int64_t{gridDim.y} * i;
      if (row >= a.rows) break;
      const Moments<S, KIND> moments = a.moments(row);
      const Values<S, VEC> x = unpack<S>(load<T, VEC>(a.x + row * a.x_stride + col));
      const Values<S, VEC> dy = unpack<S>(load<T, VEC>(a.dy + row * a.dy_stride + col));
      if constexpr (kIsCentred<KIND>) {
        const S shift = a.partial[0] ? a.shift[row] : S(0);
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          S xhat = moments.xhat(x.v[v]);
          add_centred(acc[0][v], acc[1][v], xhat, dy.v[v], shift);
        }
      } else {
#pragma unroll
        for (int v = 0; v < VEC; ++v) acc[0][v] += dy.v[v] * moments.xhat(x.v[v]);
      }
    }
#pragma unroll
    for (int k = 0; k < PLANES; ++k) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) total[k][v] += acc[k][v];
    }
  }
#pragma unroll
  for (int k = 0; k < PLANES; ++k) {
    if (!a.partial[k]) continue;
    S* const part = a.partial[k] + blockIdx.y * a.n + col;
#pragma unroll
    for (int v = 0; v < VEC; ++v) part[v] = static_cast<S>(total[k][v]);
  }
}

}  // namespace fuseline::rms
