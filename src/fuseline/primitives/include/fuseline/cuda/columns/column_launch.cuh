// Chooses kernel and block for columns by their length and alignment only, so that a column's
// result does not depend on the batch: that decides no more than how many columns a block has.
#pragma once

#include "fuseline/cuda/columns/column_slices.cuh"
#include "fuseline/cuda/launch/row_launch.cuh"

namespace fuseline::rows {
namespace {

// Not measured yet: the threads that most blocks have; bytes side by side that long columns are
// read in, if a block has threads enough, and the least; threads down a slice; the longest columns
// that are held although slices are read but once, with a launch more.
constexpr int kColumnBlock = 256, kLine = 64, kSector = 32, kSliceDepth = 64, kApart = 512;

// Elements of each input that a thread holds, in half of its registers, or less where an operator
// keeps more besides.
template <typename Op>
constexpr int kHeld =
    (Op::ROUNDS > 1 ? 24 : 32) * 4 / static_cast<int>(Op::INPUTS * sizeof(typename Op::S));

template <typename Op, int VEC>
constexpr int width_of(int bytes) {
  return bytes / (VEC * static_cast<int>(sizeof(typename Op::T)));
}

// Columns of one kind, on a GPU of `sms` multiprocessors.
template <typename Op, int VEC>
struct ColumnLaunch {
  const ColumnArgsOf<Op>& a;
  const Op& op;
  cudaStream_t stream;
  int sms;

  unsigned blocks(ColumnBlock block) const {
    return static_cast<unsigned>(ceil_div(a.rows, int64_t{VEC} << block.width));
  }
  static int threads(ColumnBlock block) { return 1 << (block.width + block.depth); }
  // As wide as is said, or narrower where so few columns, each of `pieces` blocks, leave
  // multiprocessors idle.
  ColumnBlock block(int width, int depth, int pieces = 1) const {
    const int log_width = log2_at_least(width);
    const int together = std::max(0, log2_at_least(kWarp) - log_width);
    ColumnBlock b{log_width, log2_at_least(depth), together};
    while (b.width > 0 && threads(b) > kWarp && int64_t{blocks(b)} * pieces < sms) --b.width;
    return b;
  }

  template <int ITEMS>
  void held() const {
    const auto kernel = column_kernel<Op, VEC, ITEMS>;
    const int depth = 1 << log2_at_least(ceil_div(a.n, ITEMS));
    const int width =
        std::min(std::max(kColumnBlock / depth, width_of<Op, VEC>(kLine)), kMaxBlock / depth);
    const ColumnBlock b = block(width, depth);
    kernel<<<blocks(b), threads(b), 0, stream>>>(a, op, b);
  }

  // Slices so long that all their parts, which a block of each reads, are an eighth of its bytes.
  static SlicePlan slices(int64_t n, int64_t step) {
    constexpr int64_t kPartBytes = 16, kShare = 8;
    int64_t piece = step;
    while (piece * piece * static_cast<int64_t>(sizeof(typename Op::T)) < n * kPartBytes * kShare) {
      piece += step;
    }
    return {static_cast<int>(ceil_div(n, piece)), piece};
  }

  template <typename Allocate>
  void in_slices(Allocate& allocate) const {
    using Again = typename Op::Again;
    constexpr int BYTES = VEC * sizeof(typename Op::T), WIDTH = (VEC > 1 ? kLine : kSector) / BYTES;
    constexpr int ITEMS = VEC > 1 ? 4 : std::min(8, kSector / BYTES);
    const auto kernel = column_slice_kernel<Again, VEC, ITEMS, WIDTH * kSliceDepth>;
    int depth = kSliceDepth;
    while (Op::ROUNDS == 0 && depth > 1 && depth / 2 * ITEMS >= a.n) depth /= 2;
    SlicePlan plan = slices(a.n, depth * ITEMS);
    const ColumnBlock b = block(WIDTH * kSliceDepth / depth, depth, plan.pieces);
    if constexpr (Op::ROUNDS > 0) {
      const int64_t bytes = kPartsBefore<Again, Op::ROUNDS> * plan.pieces * a.rows;
      plan.parts = static_cast<unsigned char*>(allocate(bytes));
    }
    for (; plan.round <= Op::ROUNDS; ++plan.round) {
      const bool only_ends = (Op::OUTPUTS == 0 || Op::APART) && plan.round == Op::ROUNDS;
      const dim3 grid(blocks(b), only_ends ? 1 : plan.pieces);
      kernel<<<grid, threads(b), 0, stream>>>(a, op.again(), b, plan);
    }
  }

  template <typename Allocate>
  void run(Allocate& allocate) const {
    if constexpr (Op::ROUNDS > 0) {
      constexpr int ITEMS = kHeld<Op> / VEC, FEW = std::max(1, ITEMS / 4);
      constexpr int MOST = kMaxBlock / width_of<Op, VEC>(kSector) * ITEMS;
      if (a.n <= 8 * FEW) return held<FEW>();
      if (a.n <= (Op::APART ? kApart : MOST)) return held<ITEMS>();
    }
    in_slices(allocate);
  }
};

// `allocate(bytes)` gives memory for as long as what is launched takes.
template <typename Op, typename Allocate>
cudaError_t launch_columns(const ColumnArgsOf<Op>& a, const Op& op, cudaStream_t stream,
                           Allocate allocate, int sms = multiprocessors()) {
  using T = typename Op::T;
  constexpr int VEC = std::min(4, kVec<T>);  // more take registers for what each column needs
  bool wide = true;
  if constexpr (Op::OUTPUTS > 0) {
    for (T* const out : a.out.of) wide = wide && aligned<T, VEC>(out, a.inner);
  } else {
    wide = a.inner % VEC == 0;
  }
  for (int k = 0; k < Op::INPUTS; ++k) {
    wide = wide && aligned<T, VEC>(a.in[k], a.stride[k]) && a.step[k] % VEC == 0;
  }
  if (wide) {
    ColumnLaunch<Op, VEC>{a, op, stream, sms}.run(allocate);
  } else {
    ColumnLaunch<Op, 1>{a, op, stream, sms}.run(allocate);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline::rows
