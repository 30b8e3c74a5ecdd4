// Chooses kernel and block for columns. What the order of a column's sums depends on is chosen by
// its length alone: alignment decides how many elements an access has, the number of columns how
// many a block has.
#pragma once

#include "fuseline/cuda/columns/column_slices.cuh"
#include "fuseline/cuda/launch/row_launch.cuh"

namespace fuseline::rows {
namespace {

// Threads that most blocks have; bytes side by side that long columns are read in, if a block has
// threads enough, and the least; threads down a slice; the longest columns that are held although
// slices are read but once, with a launch more; elements for a multiprocessor, of fewer of which a
// thread has one column.
constexpr int kColumnBlock = 256, kLine = 64, kSector = 32, kSliceDepth = 32, kApart = 512;
constexpr int kFewElements = 2048;

int log2_at_most(int64_t v) { return log2_at_least(v + 1) - 1; }

// How columns of an operator are divided, however they are read. A thread with much to hold has up
// to 128 registers, half of them for elements, or less where an operator keeps more besides.
template <typename Op>
struct ColumnSizes {
  using T = typename Op::T;
  static constexpr int INPUTS = Op::INPUTS, MOST_VEC = std::min(4, kVec<T>);
  static constexpr bool MUCH = INPUTS > 1;
  static constexpr int THREADS = MUCH ? 512 : kMaxBlock;  // at most
  static constexpr int HELD = (Op::ROUNDS > 1 ? 96 : 128) * (MUCH ? 2 : 1) /
                              static_cast<int>(INPUTS * sizeof(typename Op::S));
  static constexpr int ITEMS = HELD / MOST_VEC, SLICE_ITEMS = 4;
  // Of short columns, whose time is that of one thread: fp64's exponentials are long.
  static constexpr int FEW = sizeof(T) == 8 ? 2 : 4, SHORT = sizeof(T) == 8 ? 64 : 4;
  // Threads side by side for so many bytes; two that put their parts together are in one warp.
  static constexpr int width_of(int bytes, int vec) {
    return std::min(kWarp / 2, bytes / (vec * static_cast<int>(sizeof(T))));
  }
  static constexpr int MOST = THREADS / width_of(kSector, MOST_VEC) * ITEMS;

  // Blocks for columns of which `depth` threads, or some more, hold all. Those of few threads down
  // put their parts together at once, those of many after `together` of a warp.
  static ColumnBlock block(int64_t depth, int vec) {
    if (depth <= 16) return {log2_at_most(kColumnBlock / depth), static_cast<int>(depth), 0};
    const int together = std::max(1, log2_at_least(depth) - 5);
    depth = ceil_div(depth, 1 << together) << together;
    const int width =
        std::max<int>(kColumnBlock / depth, std::min<int>(width_of(kLine, vec), THREADS / depth));
    return {std::min(log2_at_most(width), 5 - together), static_cast<int>(depth), together};
  }
  // Slices so long that all their parts, which a block of each reads, are a quarter of its bytes;
  // or as many bytes, of fp64, whose exponentials take longer than to read the parts.
  static SlicePlan slices(int64_t n, int64_t step) {
    constexpr int64_t kPartBytes = 16, kShare = sizeof(T) == 8 ? 1 : 4;
    int64_t piece = step;
    while (piece * piece * static_cast<int64_t>(sizeof(T)) < n * kPartBytes * kShare) piece += step;
    return {static_cast<int>(ceil_div(n, piece)), piece};
  }
};

// Columns of one kind, read by VEC neighbours at a time, on a GPU of `sms` multiprocessors.
template <typename Op, int VEC>
struct ColumnLaunch {
  using Sizes = ColumnSizes<Op>;
  const ColumnArgsOf<Op>& a;
  const Op& op;
  cudaStream_t stream;
  int sms;

  static int threads(const ColumnBlock& b) {
    return static_cast<int>(ceil_div(int64_t{b.depth} << b.width, kWarp) * kWarp);
  }
  unsigned blocks(const ColumnBlock& b) const {
    return static_cast<unsigned>(ceil_div(a.rows, int64_t{VEC} << b.width));
  }
  // As wide as is said, or narrower where so few columns, each of `pieces` blocks, leave
  // multiprocessors idle.
  ColumnBlock block(ColumnBlock b, int pieces = 1) const {
    while (b.width > 0 && threads(b) > kWarp && int64_t{blocks(b)} * pieces < sms) --b.width;
    return b;
  }

  template <int ITEMS, bool ALONE>
  void held() const {
    constexpr int THREADS = ALONE ? kColumnBlock : Sizes::THREADS;
    const auto kernel = column_kernel<Op, VEC, ITEMS, THREADS, ALONE>;
    const ColumnBlock b = block(Sizes::block(ceil_div(std::max<int64_t>(a.n, 1), ITEMS), VEC));
    kernel<<<blocks(b), threads(b), 0, stream>>>(a, op, b);
  }

  template <typename Allocate>
  void in_slices(Allocate& allocate) const {
    using Again = typename Op::Again;
    constexpr int ITEMS = Sizes::SLICE_ITEMS, THREADS = Sizes::width_of(kLine, VEC) * kSliceDepth;
    const auto kernel = column_slice_kernel<Again, VEC, ITEMS, THREADS>;
    SlicePlan plan = Sizes::slices(a.n, kSliceDepth * ITEMS);
    const ColumnBlock b = block({log2_at_most(THREADS / kSliceDepth), kSliceDepth, 1}, plan.pieces);
    const int64_t bytes = kPartsBefore<Again, Op::ROUNDS> * plan.pieces * a.rows;
    plan.parts = static_cast<unsigned char*>(allocate(bytes));
    for (; plan.round <= Op::ROUNDS; ++plan.round) {
      const bool only_ends = (Op::OUTPUTS == 0 || Op::APART) && plan.round == Op::ROUNDS;
      const dim3 grid(blocks(b), only_ends ? 1 : plan.pieces);
      kernel<<<grid, threads(b), 0, stream>>>(a, op.again(), b, plan);
    }
  }

  template <typename Allocate>
  void run(Allocate& allocate) const {
    if (a.n <= Sizes::SHORT) return held<Sizes::FEW, Sizes::FEW == Sizes::SHORT>();
    if (a.n <= (Op::APART ? kApart : Sizes::MOST)) return held<Sizes::ITEMS, false>();
    in_slices(allocate);
  }
};

// Whether all elements can be read and written by VEC neighbours, and are enough for that.
template <int VEC, typename Op>
bool by_neighbours(const ColumnArgsOf<Op>& a, const Op&, int sms) {
  using T = typename Op::T;
  bool able = a.inner % VEC == 0 && a.rows * a.n >= int64_t{kFewElements} * sms;
  if constexpr (Op::OUTPUTS > 0) {
    for (T* const out : a.out.of) able = able && aligned<T, VEC>(out, a.inner);
  }
  for (int k = 0; k < Op::INPUTS; ++k) {
    able = able && aligned<T, VEC>(a.in[k], a.stride[k]) && a.step[k] % VEC == 0;
  }
  return able;
}

// `allocate(bytes)` gives memory for as long as what is launched takes.
template <typename Op, typename Allocate>
cudaError_t launch_columns(const ColumnArgsOf<Op>& a, const Op& op, cudaStream_t stream,
                           Allocate allocate, int sms = multiprocessors()) {
  constexpr int MOST = ColumnSizes<Op>::MOST_VEC;
  if (by_neighbours<MOST>(a, op, sms)) {
    ColumnLaunch<Op, MOST>{a, op, stream, sms}.run(allocate);
    return cudaGetLastError();
  }
  if constexpr (sizeof(typename Op::T) == 2) {  // two of these are a word
    if (by_neighbours<2>(a, op, sms)) {
      ColumnLaunch<Op, 2>{a, op, stream, sms}.run(allocate);
      return cudaGetLastError();
    }
  }
  ColumnLaunch<Op, 1>{a, op, stream, sms}.run(allocate);
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline::rows
