// Forward kernel of the norm for long rows that 16 bytes do not divide, or that are misaligned.
#pragma once

#include "fuseline/rms_cuda_fwd.cuh"
#include "fuseline/skew.cuh"

namespace fuseline::rms {

// Owns one row; a warp has ITEMS * 32 neighbouring packs of it, which count from its beginning,
// wherever it lies, so that the order of its sum is always the same.
template <typename T, typename W, int ITEMS, int MAX_THREADS, bool ADDS, typename Y>
__global__ void __launch_bounds__(MAX_THREADS, 1)
    fwd_skew_kernel(const __grid_constant__ FwdArgs<T, W, ADDS, Y> a) {
  using S = Stat<T>;
  constexpr int VEC = 16 / sizeof(T);
  __shared__ S scratch[kWarp];
  __shared__ double scratch2[kWarp];
  const int64_t row = blockIdx.x;
  const int n = static_cast<int>(a.n);
  constexpr int STEP = kWarp * VEC;
  const int begin = threadIdx.x / kWarp * ITEMS * STEP;
  const int first = begin + threadIdx.x % kWarp * VEC, end = min(n, begin + ITEMS * STEP);
  const auto store_row = [&](auto* to, const auto& packs) {
    SkewedRow<std::remove_pointer_t<decltype(to)>, VEC> out(to);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) out.put(packs[i], first + i * STEP, i == 0, end);
  };
  const auto scale = a.load_scale();
  Whole<T> packs[ITEMS];
  load_row(a.x + row * a.x_stride, first, STEP, n, a.x + (a.rows - 1) * a.x_stride + n, packs);
  if constexpr (ADDS) {
    Whole<T> other[ITEMS];
    const T* const last = a.residual + (a.rows - 1) * a.residual_stride + n;
    load_row(a.residual + row * a.residual_stride, first, STEP, n, last, other);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) packs[i] = sum_of(packs[i], other[i]);
    store_row(a.new_residual + row * a.n, packs);
  }
  const bool vector_weight = a.weight && reinterpret_cast<uintptr_t>(a.weight) % 16 == 0;
  Pack<W, VEC> weights[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = first + i * STEP;
    weights[i] = ones<W, VEC>();
    if (vector_weight && col + VEC <= n) {
      weights[i] = load<W, VEC>(a.weight + col);
    } else if (a.weight && col < n) {
      weights[i] = load_elements<Pack<W, VEC>>(a.weight, col, n);
    }
  }
  const auto divide = divisor(scale);
  S sum = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) sum += square_sum(packs[i]);
  sum = row_sum<true>(sum, blockDim.x, scratch);
  const S square = mean_of(sum, a.count, a.inv_n);
  const S eps = static_cast<S>(a.eps), largest = largest_of(square, eps);
  const bool again = needs_fallback(largest);
  if (fallback<true>(a, row, largest, again, threadIdx.x, blockDim.x, scratch2)) return;

  const S rstd = inverse_sqrt<T>(square + eps);
  if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
  Pack<Y, VEC> y[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i)
    y[i] = normalise<Y>(packs[i], rstd, weights[i], a.weight_offset, divide);
  store_row(a.y + row * a.n, y);
}

}  // namespace fuseline::rms
