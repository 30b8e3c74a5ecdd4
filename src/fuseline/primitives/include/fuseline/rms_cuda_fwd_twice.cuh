// Forward of rows that are read twice, the second time from L1.
#pragma once

#include "fuseline/rms_cuda_fwd.cuh"

namespace fuseline::rms {

// A block of THREADS owns a row of at least four packs a thread. 32 registers a thread fill a
// multiprocessor with threads, whose rows and weight L1 holds: more is on its way at a time than
// registers could keep until y is made.
template <typename T, typename W, int THREADS, typename Y>
__global__ void __launch_bounds__(THREADS, kResidentThreads / THREADS)
    fwd_twice_kernel(const __grid_constant__ FwdArgs<T, W, false, Y> a) {
  using S = Stat<T>;
  constexpr int VEC = 16 / sizeof(T), STEP = THREADS * VEC;
  __shared__ __align__(16) S scratch[kWarp];
  __shared__ double scratch2[kWarp];
  const int64_t row = blockIdx.x;
  const int n = static_cast<int>(a.n), first = threadIdx.x * VEC;
  const T* const x = a.x + row * a.x_stride;

  S sum = 0;
  for (int col = first; col < n; col += STEP) sum += square_sum(load_hinted<true, T, VEC>(x + col));
  sum = row_sum<true, THREADS / kWarp>(sum, THREADS, scratch);
  const S square = mean_of(sum, a.count, a.inv_n);
  const S eps = static_cast<S>(a.eps), largest = largest_of(square, eps);
  const bool again = needs_fallback(largest);
  if (fallback<true>(a, row, largest, again, threadIdx.x, THREADS, scratch2)) return;

  const S rstd = inverse_sqrt<T>(square + eps);
  if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
  const auto divide = divisor(a.load_scale());
  Y* const y = a.y + row * a.n;
  for (int col = first; col < n; col += STEP) {
    const Pack<T, VEC> pack = load_hinted<false, T, VEC>(x + col);
    const Pack<W, VEC> weight =
        a.weight ? load_hinted<true, W, VEC>(a.weight + col) : ones<W, VEC>();
    store<Y, VEC>(y + col, normalise<Y>(pack, rstd, weight, a.weight_offset, divide));
  }
}

}  // namespace fuseline::rms
