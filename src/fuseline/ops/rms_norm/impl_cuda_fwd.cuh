// Forward kernels of rms_norm: y = x * rstd * (weight_offset + weight), where
// rstd = 1 / sqrt(mean(x^2) + eps).
#pragma once

#include "impl_cuda_rows.cuh"

namespace fuseline::rms_norm {

// Rows of x with one stride; y is contiguous. weight and rstd may be null; weight_offset is 0
// without a weight.
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
  Stat<T> inv_n;
  Stat<T> weight_offset;
};

template <typename T, typename W, int VEC>
__device__ __forceinline__ Pack<T, VEC> normalise(const Pack<T, VEC>& x, Stat<T> rstd,
                                                  const Pack<W, VEC>& weight, Stat<T> offset) {
  using S = Stat<T>;
  Values<S, VEC> y = unpack<S>(x);
  const Values<S, VEC> w = unpack<S>(weight, offset);
#pragma unroll
  for (int v = 0; v < VEC; ++v) y.v[v] = y.v[v] * rstd * w.v[v];
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

// The larger of the mean square and |eps|: their sum is 0 where eps = -square.
template <typename S>
__device__ __forceinline__ S largest_of(S square, S eps) {
  return fmax(square, fabs(eps));
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

// Writes the elements of one thread, and rstd if it is the row's first.
template <typename T, typename W>
__device__ void exact_normalise(const FwdArgs<T, W>& a, int64_t row, int64_t first, int64_t step,
                                const ExactRstd& rstd) {
  const T* x = a.x + row * a.x_stride;
  if (a.rstd && first == 0) a.rstd[row] = static_cast<Stat<T>>(rstd.rstd());
#pragma unroll 1
  for (int64_t col = first; col < a.n; col += step) {
    const double w =
        a.weight ? static_cast<Stat<T>>(to_stat(a.weight[col])) + a.weight_offset : Stat<T>(1);
    a.y[row * a.n + col] = round_to<T, double>(rstd.times(to_stat(x[col])) * w);
  }
}

// The second look at the rows of a block, which all its threads take if one of them needs it.
// Returns whether this thread's row is done.
template <bool MULTI_WARP, typename T, typename W>
__device__ bool second_look(const FwdArgs<T, W>& a, int64_t row, Stat<T> largest, bool again,
                            int lane, int row_threads, double* scratch) {
  if (!(MULTI_WARP ? again : __any_sync(kFullMask, again))) return false;
  const SecondLook look(largest);
  const double part =
      again ? exact_square_sum(a.x + row * a.x_stride, lane, a.n, row_threads, look) : 0.0;
  const double sum = row_sum<MULTI_WARP>(part, row_threads, scratch);
  const ExactRstd exact(look, sum / static_cast<double>(a.n), a.eps);
  if (again) exact_normalise(a, row, lane, row_threads, exact);
  return again;
}

// How a block works on rows: ITEMS accesses of VEC elements a thread; several rows, or one.
// WEIGHT_FIRST asks for the weight together with x: short rows would wait for memory twice.
template <int VEC_, int ITEMS_, bool ROW_IS_BLOCK_, int MAX_THREADS_, int MIN_BLOCKS_,
          bool WEIGHT_FIRST_>
struct FwdShape {
  static constexpr int VEC = VEC_, ITEMS = ITEMS_;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool ROW_IS_BLOCK = ROW_IS_BLOCK_, WEIGHT_FIRST = WEIGHT_FIRST_;
};

// Owns blockDim / row_threads rows (one row, if ROW_IS_BLOCK); reads each once, into ITEMS packs
// a thread; writes y and, where asked for, rstd. Needs n <= row_threads * ITEMS * VEC.
template <typename T, typename W, typename Shape>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    fwd_kernel(const __grid_constant__ FwdArgs<T, W> a, int log_row_threads) {
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS;
  constexpr bool ROW_IS_BLOCK = Shape::ROW_IS_BLOCK;
  __shared__ S scratch[kWarp];
  __shared__ double scratch2[kWarp];
  const int row_threads = ROW_IS_BLOCK ? blockDim.x : 1 << log_row_threads;
  const int lane = threadIdx.x & (ROW_IS_BLOCK ? ~0 : row_threads - 1);
  const int64_t row =
      ROW_IS_BLOCK
          ? static_cast<int64_t>(blockIdx.x)
          : (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) >> log_row_threads;
  const bool active = row < a.rows;
  const int n = active ? static_cast<int>(a.n) : 0;
  const T* x = a.x + row * a.x_stride;

  Pack<T, VEC> packs[ITEMS];
  Pack<W, VEC> weights[Shape::WEIGHT_FIRST ? ITEMS : 1];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = (i * row_threads + lane) * VEC;
    if (col < n) packs[i] = load<T, VEC>(x + col);
  }
  if constexpr (Shape::WEIGHT_FIRST) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = (i * row_threads + lane) * VEC;
      weights[i] = col < n && a.weight ? load<W, VEC>(a.weight + col) : ones<W, VEC>();
    }
  }
  S sum = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if ((i * row_threads + lane) * VEC < n) sum += square_sum(packs[i]);
  }
  const S square =
      mean_of(row_sum<ROW_IS_BLOCK>(sum, row_threads, scratch), static_cast<S>(a.n), a.inv_n);
  const S eps = static_cast<S>(a.eps), largest = largest_of(square, eps);
  const bool again = active && needs_second_look(largest);
  if (second_look<ROW_IS_BLOCK>(a, row, largest, again, lane, row_threads, scratch2)) return;

  const S rstd = inverse_sqrt<T>(square + eps);
  if (active && a.rstd && lane == 0) a.rstd[row] = rstd;
  T* y = a.y + row * a.n;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = (i * row_threads + lane) * VEC;
    if (col >= n) continue;
    if constexpr (!Shape::WEIGHT_FIRST) {
      weights[0] = a.weight ? load<W, VEC>(a.weight + col) : ones<W, VEC>();
    }
    store<T, VEC>(y + col,
                  normalise<T, W, VEC>(packs[i], rstd, weights[Shape::WEIGHT_FIRST ? i : 0],
                                       a.weight_offset));
  }
}

// Rows that 16 bytes do not divide, or that lie askew: a tile of them comes at once and leaves by
// element. Owns `tile` rows, one a warp at a time (or one, if ROW_IS_BLOCK); a thread has the
// columns lane, lane + row_threads, ..., so the order of a row's sum knows nothing of where the row
// lies.
template <typename T, typename W, int ITEMS, bool ROW_IS_BLOCK, int MAX_THREADS>
__global__ void __launch_bounds__(MAX_THREADS, 1)
    fwd_odd_kernel(const __grid_constant__ FwdArgs<T, W> a, int tile) {
  using S = Stat<T>;
  extern __shared__ __align__(16) unsigned char room[];
  __shared__ S scratch[kWarp];
  __shared__ double scratch2[kWarp];
  __shared__ Arrival arrival;
  const int row_threads = ROW_IS_BLOCK ? blockDim.x : kWarp;
  const int lane = threadIdx.x % row_threads, n = static_cast<int>(a.n);
  const int cols = n - lane;  // of this thread: i * row_threads < cols
  const int64_t first = static_cast<int64_t>(blockIdx.x) * tile;
  const int count = static_cast<int>(min(static_cast<int64_t>(tile), a.rows - first));
  const Tiles<T> tiles{a.x, a.rows, a.x_stride, n};

  if (threadIdx.x == 0) arrival.init(1);
  __syncthreads();
  tiles.bring(room, first, count, arrival);
  W weights[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = i * row_threads;
    weights[i] = col < cols && a.weight ? a.weight[col + lane] : static_cast<W>(1.0f);
  }
  __syncthreads();
  arrival.wait(0);

  const T* x = tiles.place(room, first);
  for (int r = threadIdx.x / row_threads; r < count; r += blockDim.x / row_threads) {
    const int64_t row = first + r;
    const T* const mine = x + r * n + lane;
    S values[ITEMS], sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = i * row_threads;
      values[i] = col < cols ? to_stat(mine[col]) : S(0);
      sum += values[i] * values[i];
    }
    const S square =
        mean_of(row_sum<ROW_IS_BLOCK>(sum, row_threads, scratch), static_cast<S>(a.n), a.inv_n);
    const S eps = static_cast<S>(a.eps), largest = largest_of(square, eps);
    const bool again = needs_second_look(largest);
    if (second_look<ROW_IS_BLOCK>(a, row, largest, again, lane, row_threads, scratch2)) continue;

    const S rstd = inverse_sqrt<T>(square + eps);
    if (a.rstd && lane == 0) a.rstd[row] = rstd;
    T* const y = a.y + row * a.n + lane;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = i * row_threads;
      if (col >= cols) continue;
      const S w = static_cast<S>(to_stat(weights[i])) + a.weight_offset;
      y[col] = round_to<T, S>(values[i] * rstd * w);
    }
  }
}

// Owns one row of any length; reads it twice (the second time, with luck, from L2). Sums of
// kPacksAtOnce packs are added in fp64: a long fp32 sum of like squares errs in one direction.
template <typename T, typename W, int VEC>
__global__ void __launch_bounds__(kMaxBlock, 1)
    fwd_long_kernel(const __grid_constant__ FwdArgs<T, W> a) {
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
  const S largest = static_cast<S>(largest_of(square, a.eps));
  if (second_look<true>(a, row, largest, needs_second_look(largest), threadIdx.x, blockDim.x,
                        scratch[1])) {
    return;
  }
  const S rstd = inverse_sqrt<T>(static_cast<S>(square + a.eps));
  if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
  T* y = a.y + row * a.n;
#pragma unroll 4
  for (int64_t col = first; col < a.n; col += step) {
    const Pack<W, VEC> weight = a.weight ? load<W, VEC>(a.weight + col) : ones<W, VEC>();
    store<T, VEC>(y + col,
                  normalise<T, W, VEC>(load<T, VEC>(x + col), rstd, weight, a.weight_offset));
  }
}

}  // namespace fuseline::rms_norm
