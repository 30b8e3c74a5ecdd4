// Forward kernels of rms_norm: the row in registers, or read twice where it does not fit.
#pragma once

#include "impl_cuda.cuh"

namespace fuseline::rms_norm {

// Rows of x with one stride; y is contiguous. weight and rstd may be null.
template <typename T, typename W>
struct FwdArgs {
  const T* x;
  const W* weight;
  T* y;
  Stat<T>* rstd;
  int64_t rows;
  int64_t x_stride;
  int64_t n;
  double eps;
};

template <typename T, typename W, int VEC>
__device__ __forceinline__ Pack<T, VEC> normalise(const Pack<T, VEC>& x, Stat<T> rstd,
                                                  const W* weight) {
  using S = Stat<T>;
  Values<S, VEC> y = unpack<S>(x);
#pragma unroll
  for (int v = 0; v < VEC; ++v) y.v[v] *= rstd;
  if (weight) {
    const Values<S, VEC> w = unpack<S>(load<W, VEC>(weight));
#pragma unroll
    for (int v = 0; v < VEC; ++v) y.v[v] *= w.v[v];
  }
  return pack<T>(y);
}

template <typename T, int VEC>
__device__ __forceinline__ Stat<T> square_sum(const Pack<T, VEC>& p) {
  const Values<Stat<T>, VEC> x = unpack<Stat<T>>(p);
  Stat<T> sum = 0;
#pragma unroll
  for (int v = 0; v < VEC; ++v) sum += x.v[v] * x.v[v];
  return sum;
}

// Sum of squares in fp64 of the elements of one thread: the rare second look reads x again.
template <typename T>
__device__ double exact_square_sum(const T* x, int64_t first, int64_t n, int64_t step,
                                   const SecondLook& look) {
  double sum = 0;
#pragma unroll 1
  for (int64_t col = first; col < n; col += step) sum += look.square(to_stat(x[col]));
  return sum;
}

template <typename T, typename W>
__device__ void exact_normalise(const T* x, const W* weight, T* y, int64_t first, int64_t n,
                                int64_t step, const ExactRstd& rstd) {
#pragma unroll 1
  for (int64_t col = first; col < n; col += step) {
    const double w = weight ? static_cast<double>(to_stat(weight[col])) : 1.0;
    y[col] = round_to<T, double>(rstd.times(to_stat(x[col])) * w);
  }
}

// Owns blockDim / row_threads rows (one row, if ROW_IS_BLOCK); reads each once, into ITEMS packs
// a thread; writes y and, where asked for, rstd. Needs n <= row_threads * ITEMS * VEC.
template <typename T, typename W, int VEC, int ITEMS, bool ROW_IS_BLOCK>
__global__ void __launch_bounds__(ROW_IS_BLOCK ? kMaxBlock : kSmallBlock, 1)
    fwd_kernel(FwdArgs<T, W> a, int row_threads) {
  using S = Stat<T>;
  __shared__ S scratch[kWarp];
  __shared__ double scratch2[kWarp];
  const int lane = ROW_IS_BLOCK ? threadIdx.x : threadIdx.x % row_threads;
  const int64_t row =
      ROW_IS_BLOCK ? static_cast<int64_t>(blockIdx.x)
                   : (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / row_threads;
  const bool active = row < a.rows;
  const int n = active ? static_cast<int>(a.n) : 0;
  const T* x = a.x + row * a.x_stride;

  Pack<T, VEC> packs[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = (i * row_threads + lane) * VEC;
    if (col < n) packs[i] = load<T, VEC>(x + col);
  }
  S sum = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if ((i * row_threads + lane) * VEC < n) sum += square_sum(packs[i]);
  }
  sum = row_sum<ROW_IS_BLOCK>(sum, row_threads, scratch);
  const S square = sum / static_cast<S>(a.n), eps = static_cast<S>(a.eps);
  const S largest = fmax(square, fabs(eps));  // their sum is 0 where eps = -square
  const bool again = active && needs_second_look(largest);
  const S rstd = S(1) / sqrt(square + eps);

  T* y = a.y + row * a.n;
  if (ROW_IS_BLOCK ? again : __any_sync(kFullMask, again)) {
    const SecondLook look(largest);
    const double sum2 = row_sum<ROW_IS_BLOCK>(exact_square_sum(x, lane, n, row_threads, look),
                                              row_threads, scratch2);
    const ExactRstd exact(look, sum2 / static_cast<double>(a.n), a.eps);
    if (again) {
      if (a.rstd && lane == 0) a.rstd[row] = static_cast<S>(exact.rstd());
      exact_normalise(x, a.weight, y, lane, n, row_threads, exact);
      return;
    }
  }
  if (active && a.rstd && lane == 0) a.rstd[row] = rstd;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = (i * row_threads + lane) * VEC;
    if (col < n) {
      store<T, VEC>(y + col,
                    normalise<T, W, VEC>(packs[i], rstd, a.weight ? a.weight + col : nullptr));
    }
  }
}

// Owns one row of any length; reads it twice (the second time, with luck, from L2). Sums of
// kPacksAtOnce packs are added in fp64: a long fp32 sum of like squares errs in one direction.
template <typename T, typename W, int VEC>
__global__ void __launch_bounds__(kMaxBlock, 1) fwd_long_kernel(FwdArgs<T, W> a) {
  using S = Stat<T>;
  __shared__ double scratch[2][kWarp];
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.x_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC;
  const int64_t step = static_cast<int64_t>(blockDim.x) * VEC;

  double sum = 0;
  for (int64_t start = first; start < a.n; start += kPacksAtOnce * step) {
    S part = 0;
#pragma unroll
    for (int i = 0; i < kPacksAtOnce; ++i) {
      const int64_t col = start + i * step;
      if (col < a.n) part += square_sum(load<T, VEC>(x + col));
    }
    sum += part;
  }
  sum = row_sum<true>(sum, blockDim.x, scratch[0]);
  const double square = sum / static_cast<double>(a.n);
  const S largest = static_cast<S>(fmax(square, fabs(a.eps)));
  const S rstd = S(1) / sqrt(static_cast<S>(square + a.eps));
  T* y = a.y + row * a.n;
  if (needs_second_look(largest)) {
    const SecondLook look(largest);
    const double sum2 = row_sum<true>(exact_square_sum(x, threadIdx.x, a.n, blockDim.x, look),
                                      blockDim.x, scratch[1]);
    const ExactRstd exact(look, sum2 / static_cast<double>(a.n), a.eps);
    if (a.rstd && threadIdx.x == 0) a.rstd[row] = static_cast<S>(exact.rstd());
    exact_normalise(x, a.weight, y, threadIdx.x, a.n, blockDim.x, exact);
    return;
  }
  if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
#pragma unroll 4
  for (int64_t col = first; col < a.n; col += step) {
    store<T, VEC>(y + col, normalise<T, W, VEC>(load<T, VEC>(x + col), rstd,
                                                a.weight ? a.weight + col : nullptr));
  }
}

}  // namespace fuseline::rms_norm
