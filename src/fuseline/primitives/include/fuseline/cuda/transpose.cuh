// Copies between two orders of dimensions whose fastest differ: by tiles in shared memory, so that
// neighbours are read and neighbours are written.
#pragma once

#include <optional>

#include "fuseline/cuda/blocks.cuh"

namespace fuseline {

// Elements of one dimension, and how far apart they are on each side.
struct Axis {
  int64_t size, from, to;
};

// `run` has neighbours where it is read, `line` where it is written.
struct Transposition {
  Axis run, line, others[2];
};

constexpr int kLogTile = 12, kTileThreads = 256;  // elements of a tile
constexpr int kLeastSide = 2;                     // logarithm of the shorter side of a tile

// Elements between lines of a tile that put neighbours of a run in different banks.
template <typename T>
constexpr int kTilePad = sizeof(T) < 4 ? 4 / sizeof(T) : 1;

template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    transpose_kernel(const T* from, T* to, const __grid_constant__ Transposition t, int log_run) {
  constexpr int EACH = (1 << kLogTile) / kTileThreads;
  __shared__ T tile[(1 << kLogTile) + (kTilePad<T> << (kLogTile - kLeastSide))];
  const int log_line = kLogTile - log_run, pitch = (1 << log_run) + kTilePad<T>;
  int64_t block = blockIdx.x;
  const auto next = [&](int64_t count) {
    const int64_t rest = block / count, mine = block - rest * count;
    block = rest;
    return mine;
  };
  const int64_t runs = ((t.run.size - 1) >> log_run) + 1,
                lines = ((t.line.size - 1) >> log_line) + 1;
  const int64_t run = next(runs) << log_run, line = next(lines) << log_line;
  from += run + line * t.line.from;
  to += run * t.run.to + line;
#pragma unroll
  for (const Axis& other : t.others) {
    const int64_t at = next(other.size);
    from += at * other.from;
    to += at * other.to;
  }
  T held[EACH];
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int i = threadIdx.x + k * kTileThreads, x = i & ((1 << log_run) - 1), y = i >> log_run;
    held[k] = T(0);
    if (x < t.run.size - run && y < t.line.size - line) held[k] = from[x + y * t.line.from];
  }
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int i = threadIdx.x + k * kTileThreads, x = i & ((1 << log_run) - 1), y = i >> log_run;
    tile[y * pitch + x] = held[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < EACH; ++k) {
    const int i = threadIdx.x + k * kTileThreads, y = i & ((1 << log_line) - 1), x = i >> log_line;
    if (x < t.run.size - run && y < t.line.size - line) to[x * t.run.to + y] = tile[y * pitch + x];
  }
}

namespace {

// Dimensions in the order in which they are written, the fastest last: those that lie alike on both
// sides together.
struct Axes {
  static constexpr int kMost = 4;
  Axis of[kMost];
  int count = 0;

  // False where there are too many.
  bool add(const Axis& inner) {
    if (inner.size == 1) return true;
    if (count > 0) {
      Axis& outer = of[count - 1];
      if (outer.from == inner.size * inner.from && outer.to == inner.size * inner.to) {
        outer = {outer.size * inner.size, inner.from, inner.to};
        return true;
      }
    }
    if (count == kMost) return false;
    of[count++] = inner;
    return true;
  }
};

// What a copy is, if it is one of tiles: to memory without gaps, of no fewer elements than a
// quarter of a tile.
inline std::optional<Transposition> transposition(const int64_t* sizes, const int64_t* from,
                                                  const int64_t* to, int64_t dims) {
  constexpr int64_t kLeast = 1 << (kLogTile - 2);
  Axes axes;
  int64_t last = INT64_MAX;  // stride, of the dimension before
  for (int64_t left = dims; left > 0;) {
    int64_t stride = -1;
    for (int64_t d = 0; d < dims; ++d) {
      if (to[d] < last) stride = std::max(stride, to[d]);
    }
    if (stride < 0) break;
    for (int64_t d = 0; d < dims; ++d) {
      if (to[d] != stride) continue;
      if (!axes.add({sizes[d], from[d], to[d]})) return std::nullopt;
      --left;
    }
    last = stride;
  }
  if (axes.count < 2 || axes.of[axes.count - 1].to != 1) return std::nullopt;
  Transposition t{{0, 0, 0}, axes.of[axes.count - 1], {{1, 0, 0}, {1, 0, 0}}};
  int others = 0;
  for (int k = 0; k < axes.count - 1; ++k) {
    if (axes.of[k].from == 1 && t.run.size == 0) {
      t.run = axes.of[k];
    } else if (others < 2) {
      t.others[others++] = axes.of[k];
    } else {
      return std::nullopt;
    }
  }
  if (t.run.size * t.line.size < kLeast || t.line.from == 1) return std::nullopt;
  return t;
}

// Tiles are square, or as long as makes up for a side that is short.
template <typename T>
cudaError_t launch_transpose(const T* from, T* to, const Transposition& t, cudaStream_t stream) {
  int log_run = std::min(std::max(kLeastSide, log2_at_least(t.run.size)), kLogTile / 2);
  const int line = std::max(kLeastSide, log2_at_least(t.line.size));
  if (line < kLogTile / 2) log_run = kLogTile - line;
  const int64_t tiles =
      ceil_div(t.run.size, 1 << log_run) * ceil_div(t.line.size, 1 << (kLogTile - log_run));
  const int64_t blocks = tiles * t.others[0].size * t.others[1].size;
  const auto kernel = transpose_kernel<T>;
  kernel<<<static_cast<unsigned>(blocks), kTileThreads, 0, stream>>>(from, to, t, log_run);
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline
