// The backward of rows that no block can hold. A first kernel adds up slices of rows, however few
// rows there are; a second one reads them again, for dx and the sums over columns.
#pragma once

#include "fuseline/cuda/norm/backward/rms_cuda_bwd.cuh"

namespace fuseline::rms {

constexpr int kTileThreads = 256;

// The slices of a row, the same of each, and what they add up to: (rows, slices, sums).
struct LongSlices {
  int count;
  int64_t columns;
  double* sums;
};

// Owns one slice of one row; writes its sums. A thread adds up a few packs in S, and those in fp64.
template <typename T, typename W, int VEC, Kind KIND>
__global__ void __launch_bounds__(kTileThreads)
    bwd_long_sums_kernel(BwdArgs<T, W, KIND> a, LongSlices slices) {
  using S = Stat<T>;
  constexpr int SUMS = kSums<KIND>, AT_ONCE = 4;
  constexpr int STEP = kTileThreads * VEC;
  __shared__ double scratch[SUMS][kTileThreads / kWarp];
  const int64_t row = blockIdx.x / slices.count, slice = blockIdx.x % slices.count;
  const int64_t end = min(a.n, (slice + 1) * slices.columns);
  const T* const x = a.x + row * a.x_stride;
  const T* const dy = a.dy + row * a.dy_stride;
  const Moments<S, KIND> moments = a.moments(row);

  double sums[SUMS] = {};
  int64_t start = slice * slices.columns + threadIdx.x * VEC;
  for (; start < end; start += AT_ONCE * STEP) {
    S parts[SUMS] = {};
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int64_t col = start + i * STEP;
      if (col >= end) break;
      const Values<S, VEC> xhat = normalised(unpack<S>(load<T, VEC>(x + col)), moments);
      const Values<S, VEC> g =
          weighted<S, W, VEC>(unpack<S>(load<T, VEC>(dy + col)), a.weight, a.offset(), col);
#pragma unroll
      for (int v = 0; v < VEC; ++v) add<KIND>(parts, g.v[v], xhat.v[v]);
    }
#pragma unroll
    for (int k = 0; k < SUMS; ++k) sums[k] += parts[k];
  }
  row_sums<true>(sums, kTileThreads, scratch);
  if (threadIdx.x > 0) return;
#pragma unroll
  for (int k = 0; k < SUMS; ++k) slices.sums[int64_t{blockIdx.x} * SUMS + k] = sums[k];
}

// The means of a row, by a warp, in each of its lanes.
template <typename T, typename W, Kind KIND>
__device__ __forceinline__ Means<Stat<T>, KIND> means_of_slices(const BwdArgs<T, W, KIND>& a,
                                                                const LongSlices& slices,
                                                                int64_t row) {
  constexpr int SUMS = kSums<KIND>;
  const double* const from = slices.sums + row * slices.count * SUMS;
  double sums[SUMS] = {};
  for (int slice = threadIdx.x % kWarp; slice < slices.count; slice += kWarp) {
#pragma unroll
    for (int k = 0; k < SUMS; ++k) sums[k] += from[slice * SUMS + k];
  }
#pragma unroll
  for (double& sum : sums) sum = lanes_sum(sum, kWarp) / static_cast<double>(a.n);
  return Means<Stat<T>, KIND>(sums);
}

// Owns kTileThreads * ITEMS * VEC columns and every gridDim.y-th row; each warp finds the means of
// one of the rows that are next. Writes dx and one partial row of each plane. What a few rows add
// up to is added in fp64: one long sum in fp32 would lose the budget's last bits.
template <typename T, typename W, int VEC, int ITEMS, Kind KIND>
__global__ void __launch_bounds__(kTileThreads)
    bwd_long_kernel(BwdArgs<T, W, KIND> a, LongSlices slices) {
  using S = Stat<T>;
  constexpr int AT_ONCE = kTileThreads / kWarp, PLANES = kPlanes<KIND>, STEP = kTileThreads * VEC;
  __shared__ Means<S, KIND> means[2][AT_ONCE];
  const int warp = threadIdx.x / kWarp;
  const int64_t column = int64_t{blockIdx.x} * ITEMS * STEP + threadIdx.x * VEC;
  double total[PLANES][ITEMS][VEC] = {};
  int turn = 0;
  for (int64_t first = blockIdx.y; first < a.rows; first += int64_t{AT_ONCE} * gridDim.y) {
    const int64_t next = first + int64_t{gridDim.y} * warp;
    const bool sought = a.wants_means() && next < a.rows;
    const auto found = sought ? means_of_slices(a, slices, next) : Means<S, KIND>();
    if (threadIdx.x % kWarp == 0) means[turn][warp] = found;
    __syncthreads();
    S acc[PLANES][ITEMS][VEC] = {};
#pragma unroll 2
    for (int nth = 0; nth < AT_ONCE; ++nth) {
      const int64_t row = first + int64_t{gridDim.y} * nth;
      if (row >= a.rows) break;
      const Moments<S, KIND> moments = a.moments(row);
      const Means<S, KIND> mean = means[turn][nth];
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int64_t col = column + i * STEP;
        if (col >= a.n) break;
        Values<S, VEC> xhat =
            normalised(unpack<S>(load<T, VEC>(a.x + row * a.x_stride + col)), moments);
        const Values<S, VEC> d = unpack<S>(load<T, VEC>(a.dy + row * a.dy_stride + col));
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          if constexpr (kIsCentred<KIND>) {
            add_centred(acc[0][i][v], acc[1][i][v], xhat.v[v], d.v[v], mean.shift);
          } else {
            acc[0][i][v] += d.v[v] * xhat.v[v];
          }
        }
        if (!a.dx) continue;
        const T* added = nullptr;
        if constexpr (KIND == Kind::kAdds) added = a.added + row * a.added_stride + col;
        const Values<S, VEC> g = weighted<S, W, VEC>(d, a.weight, a.offset(), col);
        const Values<S, VEC> own = gradient(xhat, g, moments.rstd, mean);
        store<T, VEC>(a.dx + row * a.n + col, sum_with(a, added, own));
      }
    }
    turn ^= 1;
#pragma unroll
    for (int k = 0; k < PLANES; ++k) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
        for (int v = 0; v < VEC; ++v) total[k][i][v] += acc[k][i][v];
      }
    }
  }
#pragma unroll
  for (int k = 0; k < PLANES; ++k) {
    if (!a.partial[k]) continue;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int64_t col = column + i * STEP;
      if (col >= a.n) break;
      S sums[VEC];
#pragma unroll
      for (int v = 0; v < VEC; ++v) sums[v] = static_cast<S>(total[k][i][v]);
      a.columns(k, blockIdx.y).store(col, sums);
    }
  }
}

}  // namespace fuseline::rms
