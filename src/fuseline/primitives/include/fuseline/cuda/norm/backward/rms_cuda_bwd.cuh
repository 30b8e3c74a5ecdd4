// Backward kernels of the norms of rms_cuda_bwd_row.cuh. Parameters' gradients are summed without
// atomics: registers -> one partial row a block -> finish.
#pragma once

#include "fuseline/cuda/async.cuh"
#include "fuseline/cuda/norm/backward/rms_cuda_bwd_row.cuh"

namespace fuseline::rms {

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

// Rows that a thread adds to its parts of dweight and dbias before it writes these out; parts are
// added in fp64. A longer sum of like terms errs in one direction.
constexpr int kRowsInTurn = 64;

// Writes what a thread added up, packs `step` columns apart from `first` on, and begins anew.
template <typename S, typename W, int ITEMS, int VEC>
__device__ __forceinline__ void write_part(S (&acc)[ITEMS][VEC], const ColumnSums<S, W>& to,
                                           int first, int step, int n) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const int col = first + i * step;
    if (col < n) to.store(col, acc[i]);
#pragma unroll
    for (int v = 0; v < VEC; ++v) acc[i][v] = 0;
  }
}

// Adds up `count` rows of n in `sums`, all columns side by side.
template <typename S, typename W>
__device__ __forceinline__ void add_rows(const S* sums, int count, const ColumnSums<S, W>& to,
                                         int n) {
  __syncthreads();
  for (int col = threadIdx.x; col < n; col += blockDim.x) {
    S sum[1] = {};
    for (int row = 0; row < count; ++row) sum[0] += sums[row * n + col];
    to.store(col, sum);
  }
}

// Adds up the rows that a block held at once, those of a warp first, and writes the sum.
template <typename T, typename Shape, typename W>
__device__ __forceinline__ void write_rows(Stat<T> (&acc)[Shape::ITEMS][Shape::VEC], Stat<T>* sums,
                                           const ColumnSums<Stat<T>, W>& to, int n,
                                           int row_threads) {
  constexpr int VEC = Shape::VEC;
  const int lane = threadIdx.x % row_threads;
  const int threads = max(kWarp, row_threads), mine = threadIdx.x / threads;
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
      if (col < n) ColumnSums<Stat<T>, Stat<T>>{sums + mine * n}.store(col, acc[i]);
    }
  }
  add_rows(sums, blockDim.x / threads, to, n);
}

// Owns rows blockIdx, blockIdx + gridDim, ... (times the rows a block holds at once) and, for
// them, all columns; reads x and dy once from memory, rows ahead of need; writes dx and, every
// kRowsInTurn rows, a partial row of each plane. Each thread copies the packs that it reads, so the
// pipeline needs no barrier. Needs n <= row_threads * ITEMS * VEC.
template <typename T, typename W, typename Shape, Kind KIND>
__global__ void __launch_bounds__(Shape::MAX_THREADS, Shape::MIN_BLOCKS)
    bwd_kernel(const __grid_constant__ BwdArgs<T, W, KIND> a, int log_row_threads,
               int buffer_bytes) {
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, STAGES = Shape::STAGES;
  constexpr bool MULTI_WARP = Shape::MULTI_WARP, KEEP = Shape::KEEP, ADDS = KIND == Kind::kAdds;
  constexpr bool CENTRED = kIsCentred<KIND>;
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ S scratch[2][kSums<KIND>][Shape::MAX_THREADS / kWarp];
  const int row_threads = MULTI_WARP ? blockDim.x : 1 << log_row_threads;
  const int groups = MULTI_WARP ? 1 : blockDim.x >> log_row_threads;
  const int lane = MULTI_WARP ? threadIdx.x : threadIdx.x & (row_threads - 1);
  const int group = MULTI_WARP ? 0 : threadIdx.x >> log_row_threads;
  const int n = static_cast<int>(a.n), first = lane * VEC, step = row_threads * VEC;
  const int64_t row_step = static_cast<int64_t>(gridDim.x) * groups;
  constexpr int BUFFERS = kBuffers<KIND>;
  unsigned char* const smem = shared + group * (STAGES * BUFFERS * buffer_bytes);  // of this group

  int64_t ahead = static_cast<int64_t>(blockIdx.x) * groups + group;  // the next row to copy
  const T* x_ahead = a.x + ahead * a.x_stride;
  const T* dy_ahead = a.dy + ahead * a.dy_stride;
  const T* added_ahead = nullptr;
  if constexpr (ADDS) added_ahead = a.added + ahead * a.added_stride;
  int place_ahead = 0;
  const auto copy_item = [&](int i) {
    const int col = first + i * step;
    if (ahead >= a.rows || col >= n) return;
    const bool x_often = !MULTI_WARP && a.x_stride == 0, dy_often = !MULTI_WARP && !a.dy_stride;
    copy16(smem + place_ahead + col * sizeof(T), x_ahead + col, x_often);
    copy16(smem + place_ahead + buffer_bytes + col * sizeof(T), dy_ahead + col, dy_often);
    if constexpr (ADDS) {
      if (a.added)
        copy16(smem + place_ahead + 2 * buffer_bytes + col * sizeof(T), added_ahead + col);
    }
  };
  const auto next_row = [&] {
    end_batch();
    ahead += row_step, x_ahead += row_step * a.x_stride, dy_ahead += row_step * a.dy_stride;
    if constexpr (ADDS) added_ahead += row_step * a.added_stride;
    place_ahead = place_ahead + BUFFERS * buffer_bytes == STAGES * BUFFERS * buffer_bytes
                      ? 0
                      : place_ahead + BUFFERS * buffer_bytes;
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
  for (int i = 0; i < ITEMS; ++i) weights[i] = keep(weights[i], a.offset());
  S acc[kPlanes<KIND>][ITEMS][VEC] = {};
  int64_t row = static_cast<int64_t>(blockIdx.x) * groups + group;
  int64_t part = blockIdx.x;
  Moments<S, KIND> moments_ahead;
  if (row < a.rows) moments_ahead = a.moments(row);
  int place = 0, turn = 0;
  // All groups of a block run the same number of rounds: sums need every lane.
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * groups; base < a.rows;
       base += row_step, row += row_step) {
    const bool active = MULTI_WARP || row < a.rows;
    const Moments<S, KIND> moments = moments_ahead;
    if (row + row_step < a.rows) moments_ahead = a.moments(row + row_step);
    const T* const x = reinterpret_cast<const T*>(smem + place);
    const T* const dy = reinterpret_cast<const T*>(smem + place + buffer_bytes);
    const T* const added = reinterpret_cast<const T*>(smem + place + 2 * buffer_bytes);
    if constexpr (STAGES > 1) copy_row();
    wait_for_batch<STAGES - 1>();
    place = place + BUFFERS * buffer_bytes == STAGES * BUFFERS * buffer_bytes
                ? 0
                : place + BUFFERS * buffer_bytes;

    // A centred norm's g is dy until the second use, which knows xhat's shift.
    Values<S, VEC> xhat[KEEP ? ITEMS : 1], g[KEEP ? ITEMS : 1];
    S sums[kSums<KIND>] = {};
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = first + i * step, k = KEEP ? i : 0;
      if (!active || col >= n) continue;
      xhat[k] = normalised(unpack<S>(load<T, VEC>(x + col)), moments);
      const Values<S, VEC> d = unpack<S>(load<T, VEC>(dy + col));
      const Values<S, VEC> product = times(d, kept<S>(weights[i], a.offset()));
      g[k] = CENTRED ? d : product;
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if constexpr (!CENTRED) acc[0][i][v] += d.v[v] * xhat[k].v[v];
        add<KIND>(sums, product.v[v], xhat[k].v[v]);
      }
    }
    Means<S, KIND> means;
    if (a.wants_means()) {
      row_sums<MULTI_WARP>(sums, row_threads, scratch[turn & 1]);
      means = means_of<KIND>(sums, a.inv_n);
    }
    T* const dx = a.dx + row * a.n;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const int col = first + i * step, k = KEEP ? i : 0;
      if (active && col < n && (CENTRED || a.dx)) {
        if constexpr (!KEEP) {
          xhat[k] = normalised(unpack<S>(load<T, VEC>(x + col)), moments);
          g[k] = unpack<S>(load<T, VEC>(dy + col));
        }
        if constexpr (CENTRED) {
#pragma unroll
          for (int v = 0; v < VEC; ++v) {
            add_centred(acc[0][i][v], acc[1][i][v], xhat[k].v[v], g[k].v[v], means.shift);
          }
        }
        if constexpr (CENTRED || !KEEP) g[k] = times(g[k], kept<S>(weights[i], a.offset()));
        if (!CENTRED || a.dx) {
          const Values<S, VEC> own = gradient(xhat[k], g[k], moments.rstd, means);
          store<T, VEC>(dx + col, sum_with(a, added + col, own));
        }
      }
      if constexpr (STAGES == 1) copy_item(i);
    }
    if constexpr (STAGES == 1) next_row();
    ++turn;
    if constexpr (MULTI_WARP) {
      if (a.wants_columns() && (turn % kRowsInTurn == 0 || base + row_step >= a.rows)) {
#pragma unroll
        for (int k = 0; k < kPlanes<KIND>; ++k) {
          if (a.partial[k]) write_part(acc[k], a.columns(k, part), first, step, n);
        }
        part += gridDim.x;
      }
    }
  }
  if constexpr (!MULTI_WARP) {
    if (!a.wants_columns()) return;
    wait_for_batch<0>();
#pragma unroll
    for (int k = 0; k < kPlanes<KIND>; ++k) {
      if (!a.partial[k]) continue;
      __syncthreads();
      write_rows<T, Shape>(acc[k], reinterpret_cast<S*>(shared), a.columns(k, part), n,
                           row_threads);
    }
  }
}

}  // namespace fuseline::rms
