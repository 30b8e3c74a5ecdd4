// The backward of rows that a thread-block cluster holds together (sm_90 and later).
#pragma once

#include "fuseline/rms_cuda_bwd.cuh"
#include "fuseline/rms_cuda_cluster.cuh"

namespace fuseline::rms {

// Keeps a value in its registers: the compiler can neither compute it again nor, ahead of a loop,
// what follows from it.
__device__ __forceinline__ void pin(unsigned& v) { asm volatile("" : "+r"(v)); }
template <typename T>
__device__ __forceinline__ void pin(const T*& p) {
  asm volatile("" : "+l"(p));
}

// How a block works on its slice of a row: ITEMS accesses of 16 bytes a thread. Shared memory is a
// ring of PLACES of them: those of this row, and as many of the next as there is room for.
template <int VEC_, int ITEMS_, int THREADS_, int PLACES_>
struct ClusterShape {
  static constexpr int VEC = VEC_, ITEMS = ITEMS_, THREADS = THREADS_, PLACES = PLACES_;
  static constexpr int STEP = THREADS * VEC;                         // columns between two items
  static constexpr int PLACE = THREADS * 16, ROOM = PLACES * PLACE;  // bytes
  static_assert(ITEMS < PLACES && PLACES <= 2 * ITEMS, "some of one row ahead, at most all");
};

// A thread's packs of one row, STEP columns apart, of which those behind `cols` are not there.
template <typename T>
struct RowPacks {
  const T *x, *dy, *added;
  int cols;
};

// A cluster owns rows index, index + count, ...; each of its blocks has the next `slice` columns of
// them, the last blocks fewer or none. It reads x and dy of these once from memory, ahead of need;
// writes dx and partial rows of dweight as bwd_kernel does. Each thread copies the packs that it
// reads; a pack makes room for another when it has been read for the last time.
template <typename T, typename W, typename Shape, bool ADDS>
__global__ void __launch_bounds__(Shape::THREADS, 1)
    bwd_cluster_kernel(const __grid_constant__ BwdArgs<T, W, ADDS> a, int slice) {
#if __CUDA_ARCH__ >= 900
  using S = Stat<T>;
  constexpr int VEC = Shape::VEC, ITEMS = Shape::ITEMS, STEP = Shape::STEP, ROOM = Shape::ROOM;
  constexpr int AHEAD = Shape::PLACES - ITEMS;
  extern __shared__ __align__(16) unsigned char rooms[];
  __shared__ ClusterSum sums[2];
  const Cluster cluster;
  if (threadIdx.x < 2) sums[threadIdx.x].arrival.init(1);
  const int rows = static_cast<int>(a.rows), step = cluster.count;
  const int first = threadIdx.x * VEC, begin = cluster.rank * slice + first;
  // Columns of the slice from this thread's first one on.
  const int cols = min(static_cast<int>(a.n) - begin, slice - first);

  const auto packs_of = [&](int row) {
    RowPacks<T> from{a.x + row * a.x_stride + begin, a.dy + row * a.dy_stride + begin, nullptr,
                     row < rows ? cols : 0};
    if constexpr (ADDS) {
      from.added = a.added + row * a.added_stride + begin;
      pin(from.added);
    }
    pin(from.x), pin(from.dy);
    return from;
  };
  const auto copy_item = [&](const RowPacks<T>& from, int i, unsigned char* to) {
    if (i * STEP >= from.cols) return;
    copy16(to, from.x + i * STEP);
    copy16(to + ROOM, from.dy + i * STEP);
    if constexpr (ADDS) {
      if (a.added) copy16(to + 2 * ROOM, from.added + i * STEP);
    }
  };
  int start = 0;  // of the row in the ring
  const auto place = [&](int i) {
    const int at = start + i * Shape::PLACE;
    return rooms + threadIdx.x * 16 + (at < ROOM ? at : at - ROOM);
  };
  int row = cluster.index;
  RowPacks<T> ahead = packs_of(row);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) copy_item(ahead, i, place(i));
  end_batch();
  ahead = packs_of(row + step);
#pragma unroll
  for (int i = 0; i < AHEAD; ++i) copy_item(ahead, i, place(ITEMS + i));
  end_batch();

  Pack<W, VEC> weights[ITEMS];
  load_weight(a.weight ? a.weight + begin : nullptr, 0, STEP, cols, weights);
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) weights[i] = keep(weights[i], a.weight_offset);
  S acc[ITEMS][VEC] = {};
  S rstds = 0;             // of as many rows as a warp has lanes
  Cluster::synchronize();  // no block sends to one that is not ready
  for (int turn = 0; row < rows; row += step, ++turn) {
    if (turn % kWarp == 0) {
      const int mine = row + static_cast<int>(threadIdx.x) % kWarp * step;
      rstds = mine < rows ? a.rstd[mine] : S(0);
    }
    const S rstd = __shfl_sync(kFullMask, rstds, turn % kWarp);
    if constexpr (sizeof(W) == 2) {
#pragma unroll
      for (int i = 0; i < ITEMS; ++i) {  // or they were unpacked for all rows at once
#pragma unroll
        for (int v = 0; v < VEC; v += 2) pin(*reinterpret_cast<unsigned*>(&weights[i].v[v]));
      }
    }
    wait_for_batch<1>();  // the packs of the next row may be on their way
    S dot[2] = {};        // no sum stays in fp32 for long
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (i * STEP >= cols) continue;
      const T* const x = reinterpret_cast<const T*>(place(i));
      const T* const dy = reinterpret_cast<const T*>(place(i) + ROOM);
      const Values<S, VEC> xhat = times(unpack<S>(load<T, VEC>(x)), rstd);
      const Values<S, VEC> d = unpack<S>(load<T, VEC>(dy));
      const Values<S, VEC> g = times(d, kept<S>(weights[i], a.weight_offset));
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        acc[i][v] += d.v[v] * xhat.v[v];
        dot[i & 1] += g.v[v] * xhat.v[v];
      }
    }
    S mean = 0;
    if (a.dx) {
      const double sum = static_cast<double>(dot[0]) + dot[1];
      const double all = cluster_sum<Shape::THREADS>(cluster, sum, sums[turn % 2], turn / 2 % 2);
      mean = static_cast<S>(all) * a.inv_n;
    }
    T* const dx = a.dx + row * a.n + begin;
    ahead = packs_of(row + step);
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      if (i == ITEMS - AHEAD) {
        end_batch();
        ahead = packs_of(row + 2 * step);
      }
      if (a.dx && i * STEP < cols) {
        const T* const x = reinterpret_cast<const T*>(place(i));
        const T* const dy = reinterpret_cast<const T*>(place(i) + ROOM);
        const T* const added = reinterpret_cast<const T*>(place(i) + 2 * ROOM);
        const Values<S, VEC> xhat = times(unpack<S>(load<T, VEC>(x)), rstd);
        const Values<S, VEC> g =
            times(unpack<S>(load<T, VEC>(dy)), kept<S>(weights[i], a.weight_offset));
        store<T, VEC>(dx + i * STEP, sum_with(a, added, gradient(xhat, g, rstd, mean)));
      }
      copy_item(ahead, (i + AHEAD) % ITEMS, place(i));
    }
    end_batch();
    start += ITEMS * Shape::PLACE;
    if (start >= ROOM) start -= ROOM;
    if (a.partial && (turn % kRowsInTurn == kRowsInTurn - 1 || row + step >= rows)) {
      const int64_t part = cluster.index + turn / kRowsInTurn * step;
      write_part(acc, a.partial + part * a.n + begin, 0, STEP, cols);
    }
  }
#endif
}

}  // namespace fuseline::rms
