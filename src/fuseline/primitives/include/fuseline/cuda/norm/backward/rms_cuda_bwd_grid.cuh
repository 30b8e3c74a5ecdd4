// The backward of rows that blocks of a persistent grid hold together (sm_90 and later).
#pragma once

#include "fuseline/cuda/norm/backward/rms_cuda_bwd.cuh"
#include "fuseline/cuda/norm/backward/rms_cuda_grid.cuh"

namespace fuseline::rms {

// What the exchanging warp tells the others: mean(g * xhat) and rstd of the row that is written,
// rstd of the row that is added up next.
template <typename S>
struct BwdTurn {
  S mean, rstd, next_rstd;
};

// Rows of a thread's first sum where it has two, and of a part of dweight: with more, the worst of
// many columns would err twice as much as torch's sum.
constexpr int kRowsInSum = 16;
template <typename Shape>
constexpr int kRowsInPart = Shape::TWO_SUMS ? 128 : 32;

// Adds what a thread added up to its second sum, and begins anew.
template <typename S, int ITEMS, int VEC>
__device__ __forceinline__ void move_sums(S (&acc)[ITEMS][VEC], S (&total)[ITEMS][VEC]) {
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) total[i][v] += acc[i][v], acc[i][v] = 0;
  }
}

// Reads x and dy once, ahead of need; writes dx and partial rows of dweight as bwd_kernel does. Not
// for centred norms: three sums would be exchanged.
template <typename T, typename W, typename Shape, Kind KIND>
__global__ void __launch_bounds__(Shape::BLOCK, 1)
    bwd_grid_kernel(const __grid_constant__ BwdArgs<T, W, KIND> a,
                    const __grid_constant__ GridPlan plan) {
#if __CUDA_ARCH__ >= 900
  using S = Stat<T>;
  static_assert(!kIsCentred<KIND>);
  constexpr bool ADDS = KIND == Kind::kAdds;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, STEP = Shape::STEP,
                BUFFERS = kBuffers<KIND>;
  extern __shared__ __align__(16) unsigned char smem[];
  __shared__ Mbarrier barriers[kMaxSlots];
  __shared__ double warps[2][Shape::WARPS];
  __shared__ BwdTurn<S> turns[2];
  const GridBlock block(plan, a.rows, a.n);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, first = threadIdx.x * VEC;
  const bool exchanges = warp == Shape::WARPS;
  const int cols = exchanges ? 0 : block.cols - first;  // of the slice, from `first` on
  const int slice_bytes = plan.slice * static_cast<int>(sizeof(T));
  const auto load_async = [&](int turn) {
    if (lane > 0 || turn >= block.rows) return;
    const int slot = turn % plan.slots;
    const int64_t row = block.row(plan, turn);
    const auto copy = [&](int nth, const T* from) {
      barriers[slot].copy(smem + (slot * BUFFERS + nth) * slice_bytes, from + block.begin,
                          from ? block.cols * static_cast<unsigned>(sizeof(T)) : 0);
    };
    copy(0, a.x + row * a.x_stride);
    copy(1, a.dy + row * a.dy_stride);
    if constexpr (ADDS) copy(2, a.added ? a.added + row * a.added_stride : nullptr);
  };
  if (threadIdx.x < kMaxSlots) barriers[threadIdx.x].init(BUFFERS);
  if (threadIdx.x == 0 && block.rows > 0) turns[1].next_rstd = a.rstd[block.group];
  __syncthreads();
  if (exchanges) fill(plan, load_async);
  Pack<W, VEC> weights[ITEMS];
  load_weight(a.weight ? a.weight + block.begin + first : nullptr, 0, STEP, cols, weights);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) weights[i] = keep(weights[i], a.weight_offset);

  S acc[ITEMS][VEC] = {}, second[Shape::TWO_SUMS ? ITEMS : 1][VEC] = {};
  RingSlot in, out;
  for (int turn = 0; turn < block.rows + plan.lag; ++turn) {
    const int due = turn - plan.lag;  // the row that is written in this turn
    if (exchanges) {
      refill(plan, turn, load_async);
      const int asked = lane == 0 ? turn + 1 : due;  // by different lanes, or each were waited for
      const S rstd = asked >= 0 && asked < block.rows ? a.rstd[block.row(plan, asked)] : S(0);
      const double sum = exchange(plan, block, turn, warps[(turn + 1) % 2]);
      if (lane == 0) turns[turn % 2].next_rstd = rstd;
      if (lane == 1)
        turns[turn % 2].rstd = rstd, turns[turn % 2].mean = static_cast<S>(sum) * a.inv_n;
    } else if (turn < block.rows) {
      const Moments<S, KIND> moments{turns[(turn + 1) % 2].next_rstd};
      const T* const x =
          reinterpret_cast<const T*>(smem + in.index * BUFFERS * slice_bytes) + first;
      const T* const dy = x + plan.slice;
      barriers[in.index].wait(in.parity);
      in.next(plan.slots);
      S dot[2] = {};
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {
        if (i * STEP >= cols) continue;
        const Values<S, VEC> xhat = normalised(unpack<S>(load<T, VEC>(x + i * STEP)), moments);
        const Values<S, VEC> d = unpack<S>(load<T, VEC>(dy + i * STEP));
        const Values<S, VEC> g = times(d, kept<S>(weights[i], a.weight_offset));
#pragma unroll
        for (int v = 0; v < VEC; ++v) {
          acc[i][v] += d.v[v] * xhat.v[v];
          dot[i & 1] += g.v[v] * xhat.v[v];
        }
      }
      const double all = lanes_sum(static_cast<double>(dot[0]) + dot[1], kWarp);
      if (lane == 0) warps[turn % 2][warp] = all;
      const auto ends = [&](int rows) { return turn % rows == rows - 1 || turn == block.rows - 1; };
      if constexpr (Shape::TWO_SUMS) {
        if (ends(kRowsInSum)) move_sums(acc, second);
      }
      if (a.partial[0] && ends(kRowsInPart<Shape>)) {
        const int64_t row = block.group + turn / kRowsInPart<Shape> * plan.groups;
        const auto part = a.columns(0, row).at(block.begin + first);
        if constexpr (Shape::TWO_SUMS) {
          write_part(second, part, 0, STEP, cols);
        } else {
          write_part(acc, part, 0, STEP, cols);
        }
      }
    }
    __syncthreads();
    if (due < 0) continue;

    const BwdTurn<S> now = turns[turn % 2];
    const Moments<S, KIND> moments{now.rstd};
    const Means<S, KIND> means({now.mean});
    const T* const x = reinterpret_cast<const T*>(smem + out.index * BUFFERS * slice_bytes) + first;
    const T* const dy = x + plan.slice;
    const T* const added = dy + plan.slice;
    out.next(plan.slots);
    if (!a.dx) continue;
    T* const dx = a.dx + block.row(plan, due) * a.n + block.begin + first;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (i * STEP >= cols) continue;
      const Values<S, VEC> xhat = normalised(unpack<S>(load<T, VEC>(x + i * STEP)), moments);
      const Values<S, VEC> g =
          times(unpack<S>(load<T, VEC>(dy + i * STEP)), kept<S>(weights[i], a.weight_offset));
      store<T, VEC>(dx + i * STEP,
                    sum_with(a, added + i * STEP, gradient(xhat, g, now.rstd, means)));
    }
  }
#endif
}

}  // namespace fuseline::rms
