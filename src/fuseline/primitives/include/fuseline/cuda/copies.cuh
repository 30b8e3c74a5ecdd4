// Copies to dense memory from memory in another order, or with gaps or steps between elements.
// Those that transpose go by tiles in shared memory, so that neighbours are read and neighbours are
// written. In small copies, and where L1 keeps what else a sector holds, threads write what they
// read.
#pragma once

#include "fuseline/cuda/blocks.cuh"

namespace fuseline {

// Elements of one dimension, and how far apart they are on each side.
struct Axis {
  int64_t size, from, to;
};

// `line` has neighbours where it is written, `run` where it is read if any dimension has.
struct Copy {
  Axis run, line, others[2];

  int64_t numel() const { return run.size * line.size * others[0].size * others[1].size; }
};

// How the threads of a block share a tile on one side: so many words a row, so many rows at a time.
struct Side {
  int words, rows;
  Divider by_words;
};

// A block copies `runs` x `lines` elements.
struct CopyTiles {
  Copy copy;
  int runs, lines;
  Divider run_tiles, line_tiles, other;
  Side read, written;  // of a transposing kernel
  int pitch, plane;    // words of shared memory: of a row, of all even rows
  // Of the other one: a thread has elements that are `each` apart, of a line or one of each.
  Side threads;
  bool along_line;
  int each;
  int64_t step_from, step_to;
};

constexpr int kTileThreads = 256;
constexpr int kTileBytes = 18 << 10;  // 16 KB of elements, and what keeps banks apart
constexpr int kTileShare = 72;        // percent of what L1 shares, for 8 blocks

// Two elements of 2 bytes are one access.
template <typename T>
using TileWord = std::conditional_t<sizeof(T) == 2, uint32_t, T>;
template <typename T>
constexpr int kTilePair = sizeof(TileWord<T>) / sizeof(T);
template <typename T>
constexpr int kDirectEach = sizeof(T) == 2 ? 16 : 8;  // elements of a thread
template <typename T>
constexpr int kTileEach = (16 << 10) / kTileThreads / sizeof(TileWord<T>);  // words of a thread

namespace {

// Whether an element is the second of an access.
template <typename T>
__device__ __forceinline__ int second_of_pair(const T* base, int64_t stride, int n) {
  const auto at = static_cast<unsigned>(reinterpret_cast<uintptr_t>(base) / sizeof(T));
  return (at + static_cast<unsigned>(stride) * n) % kTilePair<T>;
}

template <typename T>
__device__ __forceinline__ void to_others(const CopyTiles& t, unsigned block, const T*& from,
                                          T*& to) {
  const unsigned at = t.other.rest(block);
  from += times(at, t.copy.others[0].from) + times(block, t.copy.others[1].from);
  to += times(at, t.copy.others[0].to) + times(block, t.copy.others[1].to);
}

// Calls each of `visits` with k and whether k * rows < left, four at a time: a branch at each would
// have every load of a batch waited for before the next.
template <int EACH, typename... Visits>
__device__ __forceinline__ void in_batches(int rows, int left, const Visits&... visits) {
  constexpr int BATCH = 4;
#pragma unroll
  for (int first = 0; first < EACH; first += BATCH) {
    if (first * rows >= left) return;
    const auto batch = [&](const auto& visit) {
#pragma unroll
      for (int k = first; k < first + BATCH; ++k) visit(k, k * rows < left);
    };
    (batch(visits), ...);
  }
}

}  // namespace

// A thread has the same columns of all of its rows: what is where is worked out once. Rows of
// 2-byte elements may begin anywhere: a thread takes every other row, whose first elements are
// alike, and of an access that is half outside only one element. Even and odd rows are apart in
// shared memory, where neighbouring lanes read every other row.
template <typename T>
__global__ void __launch_bounds__(kTileThreads, 6)
    transpose_kernel(const T* from, T* to, const __grid_constant__ CopyTiles t) {
  using Word = TileWord<T>;
  constexpr int PAIR = kTilePair<T>, EACH = kTileEach<T>;
  __shared__ Word tile[kTileBytes / sizeof(Word)];
  const T* const elements = reinterpret_cast<const T*>(tile);
  unsigned block = blockIdx.x;
  const int64_t run = times(t.run_tiles.rest(block), t.runs),
                line = times(t.line_tiles.rest(block), t.lines);
  to_others(t, block, from, to);
  const int64_t pitch_from = t.copy.line.from, pitch_to = t.copy.run.to;
  from += run + line * pitch_from;
  to += run * pitch_to + line;
  const int runs = static_cast<int>(min(static_cast<int64_t>(t.runs), t.copy.run.size - run));
  const int lines = static_cast<int>(min(static_cast<int64_t>(t.lines), t.copy.line.size - line));
  const auto word_of_row = [&](int y) {
    return y / PAIR * t.pitch + (PAIR == 2 && y % 2 ? t.plane : 0);
  };
  {
    unsigned thread = threadIdx.x;
    const int column = t.read.by_words.rest(thread), row = thread;
    const int x = column * PAIR - second_of_pair(from, pitch_from, row);
    const bool first = x >= 0 && x < runs, second = PAIR == 2 && x + 1 < runs;
    const int left = row < t.read.rows && (first || second) ? lines - row : 0;
    const T* p = from + x + times(row, pitch_from);
    const int64_t step = times(t.read.rows, pitch_from);
    Word held[EACH];
    const auto load = [&](const auto& value) {
      in_batches<EACH>(t.read.rows, left, [&](int k, bool there) {
        if (there) held[k] = value(p);
        p += step;
      });
    };
    int shift = 0;
    if (PAIR == 1 || (first && second)) {
      load([](const T* p) { return *reinterpret_cast<const Word*>(p); });
    } else {
      shift = first ? 0 : 8 * sizeof(T);
      p += !first;
      load([](const T* p) { return static_cast<Word>(*p); });
    }
    Word* q = tile + word_of_row(row) + column;
    const int next = t.read.rows / PAIR * t.pitch;
    in_batches<EACH>(t.read.rows, left, [&](int k, bool there) {
      if (there) *q = held[k] << shift;
      q += next;
    });
  }
  __syncthreads();
  unsigned thread = threadIdx.x;
  const int column = t.written.by_words.rest(thread), row = thread;
  const int y = column * PAIR - second_of_pair(to, pitch_to, row);
  const bool first = y >= 0 && y < lines, second = PAIR == 2 && y + 1 < lines;
  const int left = row < t.written.rows && (first || second) ? runs - row : 0;
  const auto element = [&](int y) {
    return elements + word_of_row(y) * PAIR + second_of_pair(from, pitch_from, y) + row;
  };
  const T *low = element(first ? y : y + 1), *high = element(y + 1);
  T* p = to + (first ? y : y + 1) + times(row, pitch_to);
  const int64_t step = times(t.written.rows, pitch_to);
  Word held[EACH];
  if (PAIR == 1 || (first && second)) {
    in_batches<EACH>(
        t.written.rows, left,
        [&](int k, bool there) {
          if (there) {
            held[k] = *low;
            if (PAIR == 2) held[k] |= static_cast<Word>(*high) << 16;
          }
          low += t.written.rows, high += t.written.rows;
        },
        [&](int k, bool there) {
          if (there) *reinterpret_cast<Word*>(p) = held[k];
          p += step;
        });
  } else {
    in_batches<EACH>(
        t.written.rows, left,
        [&](int k, bool there) {
          if (there) held[k] = *low;
          low += t.written.rows;
        },
        [&](int k, bool there) {
          if (there) *p = static_cast<T>(held[k]);
          p += step;
        });
  }
}

// Neighbouring threads write neighbours of a line.
template <typename T>
__global__ void __launch_bounds__(kTileThreads, 6)
    direct_kernel(const T* from, T* to, const __grid_constant__ CopyTiles t) {
  unsigned block = blockIdx.x, thread = threadIdx.x;
  const int column = t.threads.by_words.rest(thread), row = thread;
  const Axis &runs = t.copy.run, &lines = t.copy.line;
  const int64_t line = times(t.line_tiles.rest(block), t.lines),
                run = times(t.run_tiles.rest(block), t.runs);
  to_others(t, block, from, to);
  from += run * runs.from + line * lines.from;
  to += run * runs.to + line;
  const int rows = static_cast<int>(min(static_cast<int64_t>(t.runs), runs.size - run)) - row,
            columns =
                static_cast<int>(min(static_cast<int64_t>(t.lines), lines.size - line)) - column;
  if (row >= t.threads.rows || rows <= 0 || columns <= 0) return;
  const int left = t.along_line ? columns : rows;
  from += times(row, runs.from) + times(column, lines.from);
  to += times(row, runs.to) + column;
  constexpr int EACH = kDirectEach<T>;
  T held[EACH];
  in_batches<EACH>(t.each, left, [&](int k, bool there) {
    if (there) held[k] = *from;
    from += t.step_from;
  });
  in_batches<EACH>(t.each, left, [&](int k, bool there) {
    if (there) *to = held[k];
    to += t.step_to;
  });
}

}  // namespace fuseline
