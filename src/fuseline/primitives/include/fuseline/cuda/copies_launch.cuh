// Which copies are ours, and how each is divided among blocks and threads.
#pragma once

#include <optional>

#include "fuseline/cuda/copies.cuh"

namespace fuseline {
namespace {

// Dimensions in the order in which the last of SIDES tensors has them, the fastest last: those that
// lie alike in all of them together.
template <int SIDES>
struct Axes {
  static constexpr int kMost = 4;
  struct Axis {
    int64_t size, steps[SIDES];
  };
  Axis of[kMost];
  int count = 0;

  int64_t numel() const {
    int64_t numel = 1;
    for (int k = 0; k < count; ++k) numel *= of[k].size;
    return numel;
  }

  // False where there are too many.
  bool add(const Axis& inner) {
    if (inner.size == 1) return true;
    if (count > 0) {
      Axis& outer = of[count - 1];
      bool alike = true;
      for (int k = 0; k < SIDES; ++k) alike &= outer.steps[k] == inner.size * inner.steps[k];
      if (alike) {
        const int64_t size = outer.size;
        outer = inner;
        outer.size *= size;
        return true;
      }
    }
    if (count == kMost) return false;
    of[count++] = inner;
    return true;
  }
};

// Of tensors of one shape with these strides; none where there are too many, or no elements.
template <int SIDES>
std::optional<Axes<SIDES>> axes_of(const int64_t* sizes, const int64_t* const (&strides)[SIDES],
                                   int64_t dims) {
  const int64_t* const order = strides[SIDES - 1];
  Axes<SIDES> axes;
  int64_t last = INT64_MAX;  // stride, of the dimension before
  for (int64_t left = dims; left > 0;) {
    int64_t stride = -1;
    for (int64_t d = 0; d < dims; ++d) {
      if (order[d] < last) stride = std::max(stride, order[d]);
    }
    if (stride < 0) break;
    for (int64_t d = 0; d < dims; ++d) {
      if (order[d] != stride) continue;
      typename Axes<SIDES>::Axis axis{sizes[d], {}};
      for (int k = 0; k < SIDES; ++k) axis.steps[k] = strides[k][d];
      if (sizes[d] == 0 || !axes.add(axis)) return std::nullopt;
      --left;
    }
    last = stride;
  }
  return axes;
}

// What a copy is, if it is one of ours: to neighbours, of what are not all neighbours, and of
// enough elements in two dimensions for a block.
inline std::optional<Copy> copy_of(const int64_t* sizes, const int64_t* from, const int64_t* to,
                                   int64_t dims) {
  constexpr int64_t kLeastOfBlock = 64, kFewBlocks = 64;
  const auto found = axes_of<2>(sizes, {from, to}, dims);
  if (!found || found->count == 0) return std::nullopt;
  const auto axis = [&](int k) {
    const auto& [size, steps] = found->of[k];
    return Axis{size, steps[0], steps[1]};
  };
  const int outer = found->count - 1;
  const Axis line = axis(outer);
  if (line.to != 1 || (outer == 0 && line.from == 1)) return std::nullopt;
  // That of neighbours if a block has enough to do, else the largest.
  int run = 0;
  int64_t most = 0;
  for (int k = 0; k < outer; ++k) {
    const bool neighbours = axis(k).from == 1 && axis(k).size * line.size >= kTileThreads;
    const int64_t size = neighbours && line.from != 1 ? INT64_MAX : axis(k).size;
    if (size > most) run = k, most = size;
  }
  Copy c{{1, 0, 0}, line, {{1, 0, 0}, {1, 0, 0}}};
  int others = 0;
  for (int k = 0; k < outer; ++k) (k == run ? c.run : c.others[others++]) = axis(k);
  if (c.run.size * line.size < kLeastOfBlock && c.others[0].size * c.others[1].size > kFewBlocks) {
    return std::nullopt;
  }
  return c;
}

// Whether all strides and addresses are even, in elements.
template <typename T>
bool all_even(const Copy& c, const T* from, const T* to) {
  uint64_t bits = (reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to)) / sizeof(T);
  for (const Axis* axis : {&c.run, &c.others[0], &c.others[1]}) bits |= axis->from | axis->to;
  return bits % 2 == 0;
}

// Elements of a piece where `size` is divided evenly into pieces of whole accesses, of at most
// `most`.
inline int even_piece(int64_t size, int64_t most, int pair) {
  const int64_t pieces = ceil_div(size, most / pair * pair);
  return static_cast<int>(ceil_div(ceil_div(size, pieces), pair) * pair);
}

inline Side side(int64_t words, int pair) {
  const int count = static_cast<int>(words);
  return {count, kTileThreads / count / pair * pair, divider(words)};
}

template <typename Kernel, typename T>
cudaError_t launch_tiles(Kernel* kernel, int share, PerDeviceCache& done, const T* from, T* to,
                         CopyTiles& t, cudaStream_t stream) {
  const Copy& c = t.copy;
  const int64_t across = ceil_div(c.run.size, t.runs), along = ceil_div(c.line.size, t.lines);
  const int64_t blocks = across * along * c.others[0].size * c.others[1].size;
  t.run_tiles = divider(across), t.line_tiles = divider(along);
  t.other = divider(c.others[0].size);
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, share, done);
  kernel<<<static_cast<unsigned>(blocks), kTileThreads, 0, stream>>>(from, to, t);
  return cudaGetLastError();
}

// Tiles of 256 bytes x 64 lines, or as long as makes up for a side that is short; of a copy that
// has few of these, a quarter of it or less.
template <typename T>
cudaError_t launch_transpose(const T* from, T* to, const Copy& c, cudaStream_t stream) {
  using Word = TileWord<T>;
  constexpr int PAIR = kTilePair<T>, EACH = kTileEach<T>, CAPACITY = kTileBytes / sizeof(Word);
  constexpr int64_t MOST = kTileThreads / PAIR;  // words of a row
  constexpr int64_t GAP = PAIR == 2 ? 48 : 0;    // words of shared memory between planes, at most
  const bool few = c.numel() < 1 << 20;
  const int64_t full = few ? 16 : 256 / sizeof(Word), full_lines = few ? 32 : 64;
  // An access more where rows begin with the second element of one.
  const auto odd = [](uint64_t bits) { return static_cast<int64_t>(PAIR == 2 && bits % 2); };
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p) / sizeof(T); };
  const int64_t odd_from = odd(address(from) | c.line.from | c.others[0].from | c.others[1].from);
  const int64_t odd_to = odd(address(to) | c.run.to | c.others[0].to | c.others[1].to);
  CopyTiles t{c};
  const int64_t words = std::min(MOST, full * std::max<int64_t>(1, full_lines / c.line.size));
  t.runs = even_piece(c.run.size, (words - odd_from) * PAIR, PAIR);
  t.read = side(t.runs / PAIR + odd_from, PAIR);
  t.pitch = t.read.words | 1;
  // As many as fit, and leave a thread no more than EACH accesses on either side.
  const int64_t rows = ceil_div(ceil_div(t.runs, EACH), PAIR) * PAIR;
  const int64_t most =
      std::min({(kTileThreads / rows - odd_to) * PAIR, int64_t{EACH} * t.read.rows,
                (CAPACITY - GAP) / t.pitch - int64_t{PAIR - 1}, full * PAIR * full_lines / t.runs});
  t.lines = even_piece(c.line.size, most, PAIR);
  t.written = side(t.lines / PAIR + odd_to, PAIR);
  t.plane = ceil_div(t.lines / PAIR * t.pitch, 32) * 32 + 16;
  static PerDeviceCache done;
  return launch_tiles(transpose_kernel<T>, kTileShare, done, from, to, t, stream);
}

template <typename T>
cudaError_t launch_direct(const T* from, T* to, const Copy& c, cudaStream_t stream) {
  CopyTiles t{c};
  const int64_t enough = int64_t{2 * kTileThreads} * multiprocessors();  // threads
  const int64_t each = std::min<int64_t>(std::max<int64_t>(c.numel() / enough, 1), kDirectEach<T>);
  t.along_line = c.run.from != 1 && c.line.size >= kTileThreads * kDirectEach<T>;
  t.threads = side(t.along_line ? kTileThreads : even_piece(c.line.size, kTileThreads, 1), 1);
  t.each = t.along_line ? kTileThreads : t.threads.rows;
  t.lines = t.along_line ? static_cast<int>(kTileThreads * each) : t.threads.words;
  t.runs = t.along_line ? 1 : static_cast<int>(t.threads.rows * each);
  t.step_from = t.each * (t.along_line ? c.line.from : c.run.from);
  t.step_to = t.each * (t.along_line ? 1 : c.run.to);
  static PerDeviceCache done;
  return launch_tiles(direct_kernel<T>, kSmallShare, done, from, to, t, stream);
}

// What is read in single elements of a line's sectors: few of them, or so little that L2 gives it
// in the time that a tile would take to pass shared memory.
inline bool by_tiles(const Copy& c) {
  constexpr int64_t kOfL1 = 8, kLeast = 1 << 16;
  return c.run.from == 1 && c.line.from != 1 && c.run.size > kOfL1 && c.numel() >= kLeast;
}

template <typename T>
cudaError_t launch_copy(const T* from, T* to, Copy c, cudaStream_t stream) {
  if (by_tiles(c)) return launch_transpose(from, to, c, stream);
  if constexpr (sizeof(T) < 8) {
    // Neighbours on both sides go two at a time.
    using Two = std::conditional_t<sizeof(T) == 2, uint32_t, uint64_t>;
    if (c.line.from == 1 && c.line.size % 2 == 0 && all_even(c, from, to)) {
      c.line.size /= 2;
      for (Axis* axis : {&c.run, &c.others[0], &c.others[1]}) axis->from /= 2, axis->to /= 2;
      return launch_copy(reinterpret_cast<const Two*>(from), reinterpret_cast<Two*>(to), c, stream);
    }
  }
  return launch_direct(from, to, c, stream);
}

}  // namespace
}  // namespace fuseline
