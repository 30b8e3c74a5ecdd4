// Backward kernels of the root-mean-square norm. With xhat = x * rstd and g = dy *
// (weight_offset + weight):
//   dx = rstd * (g - xhat * mean(g * xhat)),   dweight = sum over rows of dy * xhat.
// If ADDS, dx has `added` added to it before it is rounded.
// Weight gradients are summed without atomics: registers -> one partial row a block -> finish.
#pragma once

#include "fuseline/async.cuh"
#include "fuseline/rms_cuda_math.cuh"

namespace fuseline::rms {

// What is added to dx, if it is not null: the gradient that x has from elsewhere.
template <typename T, bool ADDS>
struct Addend {};
template <typename T>
struct Addend<T, true> {
  const T* added;
  int64_t added_stride;
};

// Rows of dy and x with one stride each; dx is contiguous, partial is (blocks, n). weight may be
// null, weight_offset is 0 then; a null dx or partial is a gradient that nobody asked for.
template <typename T, typename W, bool ADDS>
struct BwdArgs : Addend<T, ADDS> {
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
  Stat<T> inv_n;
  Stat<T> weight_offset;
};

template <typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> times(Values<S, VEC> a, S b) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) a.v[v] *= b;
  return a;
}
template <typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> times(Values<S, VEC> a, const Values<S, VEC>& b) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) a.v[v] *= b.v[v];
  return a;
}

// g for one pack.
template <typename S, typename W, int VEC>
__device__ __forceinline__ Values<S, VEC> weighted(Values<S, VEC> dy, const W* weight, S offset,
                                                   int64_t col) {
  return weight ? times(dy, unpack<S>(load<W, VEC>(weight + col), offset)) : dy;
}

// dx for one pack, given mean(g * xhat) of its row.
template <typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> gradient(const Values<S, VEC>& xhat, Values<S, VEC> g,
                                                   S rstd, S mean) {
#pragma unroll
  for (int v = 0; v < VEC; ++v) g.v[v] = rstd * (g.v[v] - xhat.v[v] * mean);
  return g;
}

// dx for one pack, with what is added to it, if anything is.
template <typename T, typename W, bool ADDS, typename S, int VEC>
__device__ __forceinline__ Pack<T, VEC> sum_with(const BwdArgs<T, W, ADDS>& a, const T* added,
                                                 const Values<S, VEC>& dx) {
  if constexpr (ADDS) {
    if (a.added) return pack<T>(plus(dx, unpack<S>(load<T, VEC>(added))));
  }
  return pack<T>(dx);
}

// Tensors that have a room for each row or tile in shared memory: x, dy and what is added.
template <bool ADDS>
constexpr int kRooms = ADDS ? 3 : 2;

// A weight that a thread keeps gets its offset when it is loaded, if it is of the statistics' type;
// half types stay packed and get it whenever they are unpacked.
template <typename S, typename W, int VEC>
__device__ __forceinline__ Pack<W, VEC> keep(Pack<W, VEC> weight, S offset) {
  if constexpr (std::is_same_v<W, S>) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) weight.v[v] += offset;
  }
  return weight;
}
template <typename S, typename W, int VEC>
__device__ __forceinline__ Values<S, VEC> kept(const Pack<W, VEC>& weight, S offset) {
  if constexpr (std::is_same_v<W, S>) return unpack<S>(weight);
  return unpack<S>(weight, offset);
}

// How a block works on rows: ITEMS accesses of VEC elements a thread, rows of several warps or of
// part of one. Shared memory holds STAGES rows, of which one is being worked on; with one stage the
// next row takes the place of what has been read for the last time. KEEP holds a row in registers
// between its two uses, else it is read from shared memory again.
template <int VEC_, int ITEMS_, bool MULTI_WARP_, int MAX_THREADS_, int MIN_BLOCKS_, int STAGES_,
          bool KEEP_>
struct BwdShape {
  static constexpr int VEC = VEC_, ITEMS = ITEMS_, STAGES = STAGES_;
  static constexpr int MAX_THREADS = MAX_THREADS_, MIN_BLOCKS = MIN_BLOCKS_;
  static constexpr bool MULTI_WARP = MULTI_WARP_, KEEP = KEEP_;
  static_assert(STAGES > 1 || !KEEP, "what is kept leaves its place too early");
};

// Rows that a thread adds to its part of dweight before it writes that part out; the parts are
// added in fp64. A longer sum of like terms errs in one direction.
constexpr int kRowsInTurn = 64;

template <typename S, int VEC>
__device__ __forceinline__ void store_sums(S* to, const S (&sums)[VEC]) {
  Pack<S, VEC> p;
#pragma unroll
  for (int v = 0; v < VEC; ++v) p.v[v] = sums[v];
  store<S, VEC>(to, p);
}

// Writes what a thread added up, packs `step` columns apart from `first` on, and begins anew.
template <typename S, int ITEMS, int VEC>
__device__ __forceinline__ void write_part(S (&acc)[ITEMS][VEC], S* part, int first, int step,
                                           int n) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = first + i * step;
    if (col < n) store_sums(part + col, acc[i]);
#pragma unroll
    for (int v = 0; v < VEC; ++v) acc[i][v] = 0;
  }
}

// Adds up what the warps of a block left in `sums`, one row of n each; all columns side by side.
template <typename S>
__device__ __forceinline__ void add_warps(const S* sums, S* partial, int n) {
  __syncthreads();
  for (int col = threadIdx.x; col < n; col += blockDim.x) {
    S sum = 0;
    for (int warp = 0; warp < blockDim.x / kWarp; ++warp) sum += sums[warp * n + col];
    partial[col] = sum;
  }
}

// Adds up the rows that a block of rows of at most a warp held at once, and writes the sum.
template <typename T, typename Shape>
__device__ __forceinline__ void write_warps(Stat<T> (&acc)[Shape::ITEMS][Shape::VEC], Stat<T>* sums,
                                            Stat<T>* partial, int n, int row_threads) {
  constexpr int VEC = Shape::VEC;
  const int lane = threadIdx.x % row_threads;
  const int warp = threadIdx.x / kWarp;
  for (int offset = kWarp / 2; offset >= row_threads; offset /= 2) {
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) acc[i][v] += __shfl_xor_sync(kFullMask, acc[i][v], offset);
    }
  }
  if (threadIdx.x % kWarp < row_threads) {
#pragma unroll
    for (int i = 0; i < Shape::ITEMS; ++i) {
      const int col = (i * row_threads + lane) * VEC;
      if (col < n) store_sums(sums + warp * n + col, acc[i]);
    }
  }
  add_warps(sums, partial, n);
}

// Owns rows blockIdx, blockIdx + gridDim, ... (times the rows a block holds at once) and, for
// them, all columns; reads x and dy once from memory, rows ahead of need; writes dx and, every
// kRowsInTurn rows, a partial row of dweight. Each thread copies the packs that it reads, so the
// pipeline needs no barrier. Needs n <= row_threads * ITEMS * VEC.
template <typename T, typename W, typename Shape, bool ADDS>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    bwd_kernel(const __grid_constant__ BwdArgs<T, W, ADDS> a, int log_row_threads, int room) {
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, STAGES = Shape::STAGES;
  constexpr bool MULTI_WARP = Shape::MULTI_WARP, KEEP = Shape::KEEP;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ S scratch[2][kWarp];
  const int row_threads = MULTI_WARP ? blockDim.x : 1 << log_row_threads;
  const int groups = MULTI_WARP ? 1 : blockDim.x >> log_row_threads;
  const int lane = MULTI_WARP ? threadIdx.x : threadIdx.x & (row_threads - 1);
  const int group = MULTI_WARP ? 0 : threadIdx.x >> log_row_threads;
  const int n = static_cast<int>(a.n), first = lane * VEC, step = row_threads * VEC;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * groups;
  constexpr int ROOMS = kRooms<ADDS>;
  unsigned char* const rooms = shared + group * (STAGES * ROOMS * room);  // of this group

  int64_t ahead = static_cast<int64_t>(blockIdx.x) * groups + group;  // the next row to copy
  const T* x_ahead = a.x + ahead * a.x_stride;
  const T* dy_ahead = a.dy + ahead * a.dy_stride;
  const T* added_ahead = nullptr;
  if constexpr (ADDS) added_ahead = a.added + ahead * a.added_stride;
  int place_ahead = 0;
  const auto copy_item = [&](int i) {
    const int col = first + i * step;
    if (ahead >= a.rows || col >= n) return;
    copy16(rooms + place_ahead + col * sizeof(T), x_ahead + col);
    copy16(rooms + place_ahead + room + col * sizeof(T), dy_ahead + col);
    if constexpr (ADDS) {
      if (a.added) copy16(rooms + place_ahead + 2 * room + col * sizeof(T), added_ahead + col);
    }
  };
  const auto next_row = [&] {
    end_batch();
    ahead += row_step, x_ahead += row_step * a.x_stride, dy_ahead += row_step * a.dy_stride;
    if constexpr (ADDS) added_ahead += row_step * a.added_stride;
    place_ahead =
        place_ahead + ROOMS * room == STAGES * ROOMS * room ? 0 : place_ahead + ROOMS * room;
  };
  const auto copy_row = [&] {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) copy_item(i);
    next_row();
  };
#pragma unroll
  for (int s = 0; s < max(STAGES - 1, 1); ++s) copy_row();

  Pack<W, VEC> weights[ITEMS];
  load_weight(a.weight, first, step, n, weights);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) weights[i] = keep(weights[i], a.weight_offset);
  S acc[ITEMS][VEC] = {};
  int64_t row = static_cast<int64_t>(blockIdx.x) * groups + group;
  int64_t part = blockIdx.x;
  S rstd_ahead = row < a.rows ? a.rstd[row] : S(0);
  int place = 0, turn = 0;
  // All groups of a block run the same number of rounds: sums need every lane.
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < a.rows;
       base += row_step, row += row_step) {
    const bool active = MULTI_WARP || row < a.rows;
    const S rstd = rstd_ahead;
    if (row + row_step < a.rows) rstd_ahead = a.rstd[row + row_step];
    const T* const x = reinterpret_cast<const T*>(rooms + place);
    const T* const dy = reinterpret_cast<const T*>(rooms + place + room);
    const T* const added = reinterpret_cast<const T*>(rooms + place + 2 * room);
    if constexpr (STAGES > 1) copy_row();
    wait_for_batch<STAGES - 1>();
    place = place + ROOMS * room == STAGES * ROOMS * room ? 0 : place + ROOMS * room;

    Values<S, VEC> xhat[KEEP ? ITEMS : 1], g[KEEP ? ITEMS : 1];
    S dot = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = first + i * step, k = KEEP ? i : 0;
      if (!active || col >= n) continue;
      xhat[k] = times(unpack<S>(load<T, VEC>(x + col)), rstd);
      const Values<S, VEC> d = unpack<S>(load<T, VEC>(dy + col));
      g[k] = times(d, kept<S>(weights[i], a.weight_offset));
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        acc[i][v] += d.v[v] * xhat[k].v[v];
        dot += g[k].v[v] * xhat[k].v[v];
      }
    }
    S mean = 0;
    if (a.dx) mean = row_sum<MULTI_WARP>(dot, row_threads, scratch[turn & 1]) * a.inv_n;
    T* const dx = a.dx + row * a.n;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = first + i * step, k = KEEP ? i : 0;
      if (active && col < n && a.dx) {
        if constexpr (!KEEP) {
          xhat[k] = times(unpack<S>(load<T, VEC>(x + col)), rstd);
          g[k] = times(unpack<S>(load<T, VEC>(dy + col)), kept<S>(weights[i], a.weight_offset));
        }
        store<T, VEC>(dx + col, sum_with(a, added + col, gradient(xhat[k], g[k], rstd, mean)));
      }
      if constexpr (STAGES == 1) copy_item(i);
    }
    if constexpr (STAGES == 1) next_row();
    ++turn;
    if constexpr (MULTI_WARP) {
      if (a.partial && (turn % kRowsInTurn == 0 || base + row_step >= a.rows)) {
        write_part(acc, a.partial + part * a.n, first, step, n);
        part += gridDim.x;
      }
    }
  }
  if constexpr (!MULTI_WARP) {
    if (!a.partial) return;
    wait_for_batch<0>();
    __syncthreads();
    write_warps<T, Shape>(acc, reinterpret_cast<S*>(shared), a.partial + part * a.n, n,
                          row_threads);
  }
}

}  // namespace fuseline::rms
