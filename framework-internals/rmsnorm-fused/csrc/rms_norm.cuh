// RMSNorm on the GPU: a block has a row, its threads every 256th element of it.
#pragma once
#include <cstdint>

namespace rmsnorm {

constexpr int kThreads = 256;
// Blocks of the backward, each with a partial sum of dw; and what its shared memory can hold.
constexpr int64_t kBlocks = 528, kMostColumns = 48 * 1024 / sizeof(double) - 64;

// The sum over the block, in every thread.
template <class C>
__device__ C block_sum(C v) {
  __shared__ C parts[kThreads / 32];
  for (int far = 16; far; far /= 2) v += __shfl_xor_sync(~0u, v, far);
  __syncthreads();  // the last sum's parts have been read
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = 0;
  for (int i = 0; i < kThreads / 32; ++i) v += parts[i];
  return v;
}

// A block owns one row; reads x (the second time from the cache) and w, writes y and rstd.
template <class T, class C>
__global__ void forward_kernel(const T* __restrict__ x, const T* __restrict__ w, T* __restrict__ y,
                               C* __restrict__ rstd, int64_t n, C eps) {
  x += blockIdx.x * n;
  y += blockIdx.x * n;
  C sum = 0;
  for (int64_t j = threadIdx.x; j < n; j += kThreads)
    sum += static_cast<C>(x[j]) * static_cast<C>(x[j]);
  const C r = rsqrt(block_sum(sum) / n + eps);
  if (threadIdx.x == 0) rstd[blockIdx.x] = r;
  for (int64_t j = threadIdx.x; j < n; j += kThreads)
    y[j] = static_cast<T>(static_cast<C>(x[j]) * r * static_cast<C>(w[j]));
}

// A block owns rows b, b + blocks, ...; reads dy, x, w, rstd, writes dx and its partial sum of dw.
template <class T, class C>
__global__ void backward_kernel(const T* __restrict__ dy, const T* __restrict__ x,
                                const T* __restrict__ w, const C* __restrict__ rstd,
                                T* __restrict__ dx, C* __restrict__ partial, int64_t rows,
                                int64_t n) {
  extern __shared__ char shared[];
  C* const sums = reinterpret_cast<C*>(shared);  // each thread has its own columns
  for (int64_t j = threadIdx.x; j < n; j += kThreads) sums[j] = 0;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const T *const dys = dy + row * n, *const xs = x + row * n;
    const C r = rstd[row];
    C dot = 0;
    for (int64_t j = threadIdx.x; j < n; j += kThreads) {
      const C d = static_cast<C>(dys[j]), xhat = static_cast<C>(xs[j]) * r;
      sums[j] += d * xhat;
      dot += d * static_cast<C>(w[j]) * xhat;
    }
    dot = block_sum(dot) / n;
    for (int64_t j = threadIdx.x; j < n; j += kThreads) {
      const C g = static_cast<C>(dys[j]) * static_cast<C>(w[j]), xhat = static_cast<C>(xs[j]) * r;
      dx[row * n + j] = static_cast<T>(r * (g - xhat * dot));
    }
  }
  for (int64_t j = threadIdx.x; j < n; j += kThreads) partial[blockIdx.x * n + j] = sums[j];
}

// A thread owns one column; adds up the blocks' sums, always in the same order.
template <class T, class C>
__global__ void sum_kernel(const C* __restrict__ partial, T* __restrict__ dw, int64_t blocks,
                           int64_t n) {
  const int64_t j = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (j >= n) return;
  C sum = 0;
  for (int64_t b = 0; b < blocks; ++b) sum += partial[b * n + j];
  dw[j] = static_cast<T>(sum);
}

}  // namespace rmsnorm
