// Forward kernels of the root-mean-square norm: y = h * rstd * (weight_offset + weight), where rstd
// = 1 / sqrt(mean(h^2) + eps). h is x or, if ADDS, x + residual as it is rounded to new_residual,
// which is written too. In e4m3 (Y) y is divided by a scale before it is rounded.
#pragma once

#include "fuseline/async.cuh"
#include "fuseline/rms_cuda_e4m3.cuh"
#include "fuseline/rms_cuda_math.cuh"

namespace fuseline::rms {

// What rows of x + residual need besides; new_residual is contiguous.
template <typename T, bool ADDS>
struct Addition {};
template <typename T>
struct Addition<T, true> {
  const T* residual;
  T* new_residual;
  int64_t residual_stride;
};

// Rows of x with one stride; y is contiguous. weight and rstd may be null; weight_offset is 0
// without a weight.
template <typename T, typename W, bool ADDS, typename Y>
struct FwdArgs : Addition<T, ADDS>, Scaling<Y> {
  const T* x;
  const W* weight;
  Y* y;
  Stat<T>* rstd;
  int64_t rows;
  int64_t x_stride;
  int64_t n;
  double eps;
  Stat<T> count;  // n, and 1 / n: the processor takes long to convert and to divide
  Stat<T> inv_n;
  Stat<T> weight_offset;

  // The row that is normalised; a sum is there once the kernel has written it.
  __device__ const T* h(int64_t row) const {
    if constexpr (ADDS) {
      return this->new_residual + row * n;
    } else {
      return x + row * x_stride;
    }
  }
};

template <typename Y, typename T, typename W, int VEC, typename Divide>
__device__ __forceinline__ Pack<Y, VEC> normalise(const Pack<T, VEC>& x, Stat<T> rstd,
                                                  const Pack<W, VEC>& weight, Stat<T> offset,
                                                  const Divide& divide) {
  using S = Stat<T>;
  Values<S, VEC> y = unpack<S>(x);
  const Values<S, VEC> w = unpack<S>(weight, offset);
#pragma unroll
  for (int v = 0; v < VEC; ++v) y.v[v] = divide(y.v[v] * rstd * w.v[v]);
  return pack<Y>(y);
}

template <typename T, int VEC>
__device__ __forceinline__ Stat<T> square_sum(const Pack<T, VEC>& p) {
  const Values<Stat<T>, VEC> x = unpack<Stat<T>>(p);
  Stat<T> sums[2] = {0, 0};  // two chains of half the length
#pragma unroll
  for (int v = 0; v < VEC; ++v) sums[v % 2] += x.v[v] * x.v[v];
  return sums[0] + sums[1];
}

// Turns a thread's packs of x, `step` columns apart, into h and writes it; where nothing is added
// they are h. AT_ONCE packs are loaded before one is stored: the compiler cannot know that a store
// leaves what is loaded after it alone.
template <int AT_ONCE, typename T, typename W, bool ADDS, typename Y, int VEC, int ITEMS,
          typename Col>
__device__ __forceinline__ void add_residual(const FwdArgs<T, W, ADDS, Y>& a, int64_t row,
                                             Col first, Col step, Col n,
                                             Pack<T, VEC> (&packs)[ITEMS]) {
  if constexpr (ADDS) {
    const T* const residual = a.residual + row * a.residual_stride;
    T* const h = a.new_residual + row * a.n;
#pragma unroll
    for (int start = 0; start < ITEMS; start += AT_ONCE) {
      Pack<T, VEC> other[AT_ONCE];
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const Col col = first + (start + i) * step;
        if (col < n) other[i] = load<T, VEC>(residual + col);
      }
#pragma unroll
      for (int i = 0; i < AT_ONCE; ++i) {
        const Col col = first + (start + i) * step;
        if (col >= n) continue;
        packs[start + i] = sum_of(packs[start + i], other[i]);
        store<T, VEC>(h + col, packs[start + i]);
      }
    }
  }
}

// The larger of the mean square and |eps|: their sum is 0 where eps = -square.
template <typename S>
__device__ __forceinline__ S largest_of(S square, S eps) {
  return fmax(square, fabs(eps));
}

// Sum of squares in fp64 of the elements of one thread: the rare fallback reads x again.
template <typename T>
__device__ double exact_square_sum(const T* x, int64_t first, int64_t n, int64_t step,
                                   const FallbackScale& scaled) {
  double sum = 0;
#pragma unroll 1
  for (int64_t col = first; col < n; col += step) sum += scaled.square(to_stat(x[col]));
  return sum;
}

// Writes the elements of one thread up to `end`, and rstd if one is the row's first.
template <typename T, typename W, bool ADDS, typename Y>
__device__ void exact_normalise(const FwdArgs<T, W, ADDS, Y>& a, int64_t row, int64_t first,
                                int64_t end, int64_t step, const ExactRstd& rstd) {
  const T* x = a.h(row);
  const auto divide = divisor(a.load_scale());
  if (a.rstd && first == 0) a.rstd[row] = static_cast<Stat<T>>(rstd.rstd());
#pragma unroll 1
  for (int64_t col = first; col < end; col += step) {
    const double w =
        a.weight ? static_cast<Stat<T>>(to_stat(a.weight[col])) + a.weight_offset : Stat<T>(1);
    a.y[row * a.n + col] = round_to<Y>(divide(rstd.times(to_stat(x[col])) * w));
  }
}

// The fallback for the rows of a block, which all its threads take if one of them needs it.
// Returns whether this thread's row is done.
template <bool MULTI_WARP, typename T, typename W, bool ADDS, typename Y>
__device__ bool fallback(const FwdArgs<T, W, ADDS, Y>& a, int64_t row, Stat<T> largest, bool again,
                         int lane, int row_threads, double* scratch) {
  if (!(MULTI_WARP ? again : __any_sync(kFullMask, again))) return false;
  if constexpr (ADDS && !MULTI_WARP) __syncwarp();  // h is read by other lanes than wrote it
  const FallbackScale scaled(largest);
  const double part = again ? exact_square_sum(a.h(row), lane, a.n, row_threads, scaled) : 0.0;
  const double sum = row_sum<MULTI_WARP>(part, row_threads, scratch);
  const ExactRstd exact(scaled, sum / static_cast<double>(a.n), a.eps);
  if (again) exact_normalise(a, row, lane, a.n, row_threads, exact);
  return again;
}

// How a block works on rows: ROW_THREADS threads a row (0: the block is the row's), each with ITEMS
// accesses of VEC elements. WEIGHT_FIRST loads the weight together with x: short rows would wait
// for memory twice.
template <int VEC_, int ITEMS_, int ROW_THREADS_, int MAX_THREADS_, int MIN_BLOCKS_,
          bool WEIGHT_FIRST_>
struct FwdShape {
  static constexpr int VEC = VEC_, ITEMS = ITEMS_, ROW_THREADS = ROW_THREADS_;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool ROW_IS_BLOCK = ROW_THREADS == 0, WEIGHT_FIRST = WEIGHT_FIRST_;
};

// Reads each row once, into ITEMS packs a thread; writes y and, if requested, rstd. Needs
// n <= row threads * ITEMS * VEC. Small problems are bound by the length of this path, so addresses
// are computed once and nothing branches before the loads.
template <typename T, typename W, typename Shape, bool ADDS, typename Y>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    fwd_kernel(const __grid_constant__ FwdArgs<T, W, ADDS, Y> a) {
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, MAX_WARPS = Shape::MAX_THREADS / kWarp;
  constexpr bool ROW_IS_BLOCK = Shape::ROW_IS_BLOCK;
  __shared__ __align__(16) S scratch[kWarp];
  __shared__ double scratch2[kWarp];
  const int row_threads = ROW_IS_BLOCK ? blockDim.x : Shape::ROW_THREADS;
  // No division by what only the launch knows.
  int lane = threadIdx.x;
  int64_t row = blockIdx.x;
  if constexpr (!ROW_IS_BLOCK) {
    row = row * (Shape::MAX_THREADS / Shape::ROW_THREADS) + lane / Shape::ROW_THREADS;
    lane %= Shape::ROW_THREADS;
  }
  const int step = row_threads * VEC;
  const bool active = row < a.rows;
  const int n = active ? static_cast<int>(a.n) : 0;
  const int cols = n - lane * VEC;  // of this thread: pack i is there if i * step < cols
  const T* const x = a.x + row * a.x_stride + lane * VEC;
  const W* const weight = a.weight + lane * VEC;
  Y* const y = a.y + row * a.n + lane * VEC;

  const auto scale = a.load_scale();
  Pack<T, VEC> packs[ITEMS];
  Pack<W, VEC> weights[Shape::WEIGHT_FIRST ? ITEMS : 1];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    packs[i] = Pack<T, VEC>{};
    if (i * step < cols) packs[i] = load<T, VEC>(x + i * step);
  }
  if constexpr (Shape::WEIGHT_FIRST) load_weight(a.weight, lane * VEC, step, n, weights);
  add_residual<Shape::WEIGHT_FIRST ? ITEMS : 2>(a, row, lane * VEC, step, n, packs);
  const auto divide = divisor(scale);
  S sum = 0;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) sum += square_sum(packs[i]);
  sum = row_sum<ROW_IS_BLOCK, MAX_WARPS>(sum, row_threads, scratch);
  const S square = mean_of(sum, a.count, a.inv_n);
  const S eps = static_cast<S>(a.eps), largest = largest_of(square, eps);
  const bool again = active && needs_fallback(largest);
  if (fallback<ROW_IS_BLOCK>(a, row, largest, again, lane, row_threads, scratch2)) return;

  const S rstd = inverse_sqrt<T>(square + eps);
  if (active && a.rstd && lane == 0) a.rstd[row] = rstd;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    if (i * step >= cols) continue;
    if constexpr (!Shape::WEIGHT_FIRST) {
      weights[0] = a.weight ? load<W, VEC>(weight + i * step) : ones<W, VEC>();
    }
    store<Y, VEC>(y + i * step, normalise<Y>(packs[i], rstd, weights[Shape::WEIGHT_FIRST ? i : 0],
                                             a.weight_offset, divide));
  }
}

template <typename T, typename W, typename Y>
__device__ Tiles<T> residuals(const FwdArgs<T, W, true, Y>& a) {
  return {a.residual, a.rows, a.residual_stride, static_cast<int>(a.n)};
}

// Rows that 16 bytes do not divide, or that are misaligned. Owns tiles blockIdx, blockIdx +
// gridDim, ... of as many rows as the block has warps; a tile comes at once, ahead of need, and
// leaves by element. A thread has the columns lane, lane + 32, ..., so the order of a row's sum
// knows nothing of where the row lies.
template <typename T, typename W, typename Shape, bool ADDS, typename Y>
__global__ void __launch_bounds__(Shape::THREADS, Shape::MIN_BLOCKS)
    fwd_odd_kernel(const __grid_constant__ FwdArgs<T, W, ADDS, Y> a, int buffer_bytes) {
  using S = Stat<T>;
  constexpr int ITEMS = Shape::ITEMS, STAGES = Shape::STAGES, TILE = Shape::THREADS / kWarp;
  extern __shared__ __align__(16) unsigned char smem[];
  __shared__ Mbarrier barriers[STAGES];
  const int lane = threadIdx.x % kWarp, n = static_cast<int>(a.n);
  constexpr int BUFFERS = ADDS ? 2 : 1;  // of a stage
  const Tiles<T> xs{a.x, a.rows, a.x_stride, n};
  const int64_t step = static_cast<int64_t>(gridDim.x) * TILE;
  int64_t first = static_cast<int64_t>(blockIdx.x) * TILE, ahead = first;

  const auto load_async = [&](int stage) {
    if (ahead < a.rows) {
      const int count = static_cast<int>(min(static_cast<int64_t>(TILE), a.rows - ahead));
      xs.load_async(smem + BUFFERS * stage * buffer_bytes, ahead, count, barriers[stage]);
      if constexpr (ADDS) {
        residuals(a).load_async(smem + (2 * stage + 1) * buffer_bytes, ahead, count,
                                barriers[stage]);
      }
    }
    ahead += step;
  };
  if (threadIdx.x < STAGES) barriers[threadIdx.x].init(BUFFERS);
  __syncthreads();
  for (int stage = 0; stage < STAGES; ++stage) load_async(stage);
  W weights[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = i * kWarp + lane;
    weights[i] = col < n && a.weight ? a.weight[col] : static_cast<W>(1.0f);
  }
  const auto divide = divisor(a.load_scale());
  __syncthreads();

  int stage = 0;
  unsigned parity = 0;
  for (; first < a.rows; first += step) {
    const int64_t row = first + threadIdx.x / kWarp;
    const int cols = row < a.rows ? n - lane : 0;  // of this thread: i * kWarp < cols
    barriers[stage].wait(parity);
    const int mine = threadIdx.x / kWarp * n + lane;
    const T* const x = xs.place(smem + BUFFERS * stage * buffer_bytes, first) + mine;
    T values[ITEMS];
    S sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = i * kWarp;
      values[i] = col < cols ? x[col] : static_cast<T>(0.0f);
    }
    if constexpr (ADDS) {
      const T* const other =
          residuals(a).place(smem + (2 * stage + 1) * buffer_bytes, first) + mine;
      T* const h = a.new_residual + row * a.n + lane;
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        const int col = i * kWarp;
        if (col >= cols) continue;
        values[i] = round_to<T, S>(to_stat(values[i]) + to_stat(other[col]));
        h[col] = values[i];
      }
    }
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) sum += to_stat(values[i]) * to_stat(values[i]);
    sum = lanes_sum(sum, kWarp);
    __syncthreads();
    load_async(stage);  // all have read this tile
    stage ^= 1;
    parity ^= stage == 0;

    const S square = mean_of(sum, a.count, a.inv_n);
    const S eps = static_cast<S>(a.eps), largest = largest_of(square, eps);
    const bool again = row < a.rows && needs_fallback(largest);
    if (fallback<false>(a, row, largest, again, lane, kWarp, nullptr)) continue;
    const S rstd = inverse_sqrt<T>(square + eps);
    if (row < a.rows && a.rstd && lane == 0) a.rstd[row] = rstd;
    Y* const y = a.y + row * a.n + lane;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = i * kWarp;
      if (col >= cols) continue;
      const S w = static_cast<S>(to_stat(weights[i])) + a.weight_offset;
      y[col] = round_to<Y>(divide(to_stat(values[i]) * rstd * w));
    }
  }
}

// Owns one row of any length; reads h twice (the second time, with luck, from L2). Sums of
// kPacksAtOnce packs are added in fp64: a long fp32 sum of like squares errs in one direction.
template <typename T, typename W, int VEC, bool ADDS, typename Y>
__global__ void __launch_bounds__(kMaxBlock, 1)
    fwd_long_kernel(const __grid_constant__ FwdArgs<T, W, ADDS, Y> a) {
  using S = Stat<T>;
  __shared__ double scratch[2][kWarp];
  const int64_t row = blockIdx.x;
  const T* x = a.x + row * a.x_stride;
  const int64_t first = static_cast<int64_t>(threadIdx.x) * VEC;
  const int64_t step = static_cast<int64_t>(blockDim.x) * VEC;
  const auto scale = a.load_scale();

  double sum = 0;
  for (int64_t start = first; start < a.n; start += kPacksAtOnce * step) {
    S part = 0;
    if constexpr (ADDS) {
      Pack<T, VEC> packs[kPacksAtOnce];
#pragma unroll
      for (int i = 0; i < kPacksAtOnce; ++i) {
        const int64_t col = start + i * step;
        if (col < a.n) packs[i] = load<T, VEC>(x + col);
      }
      add_residual<kPacksAtOnce>(a, row, start, step, a.n, packs);
#pragma unroll
      for (int i = 0; i < kPacksAtOnce; ++i) {
        if (start + i * step < a.n) part += square_sum(packs[i]);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPacksAtOnce; ++i) {
        const int64_t col = start + i * step;
        if (col < a.n) part += square_sum(load<T, VEC>(x + col));
      }
    }
    sum += part;
  }
  const auto divide = divisor(scale);
  sum = row_sum<true>(sum, blockDim.x, scratch[0]);
  const double square = sum / static_cast<double>(a.n);
  const S largest = static_cast<S>(largest_of(square, a.eps));
  if (fallback<true>(a, row, largest, needs_fallback(largest), threadIdx.x, blockDim.x,
                     scratch[1])) {
    return;
  }
  const S rstd = inverse_sqrt<T>(static_cast<S>(square + a.eps));
  if (a.rstd && threadIdx.x == 0) a.rstd[row] = rstd;
  const T* const h = ADDS ? a.h(row) : x;
  Y* y = a.y + row * a.n;
#pragma unroll 4
  for (int64_t col = first; col < a.n; col += step) {
    const Pack<W, VEC> weight = a.weight ? load<W, VEC>(a.weight + col) : ones<W, VEC>();
    store<Y, VEC>(y + col,
                  normalise<Y>(load<T, VEC>(h + col), rstd, weight, a.weight_offset, divide));
  }
}

}  // namespace fuseline::rms
