// Rows that several blocks share, by clusters and by grids: blocks are threads here.
#pragma once

#define BLOCKS_AT_ONCE
#include "emulator.h"
#include "fuseline/cuda/launch/row_launch.cuh"

namespace {

using namespace fuseline;

enum How { kCluster, kHeld, kReadAgain };

// How rows are shared: `each` pieces a block, as many groups.
struct Sharing {
  int64_t how, pieces, each, groups;
};

template <bool WHOLE, typename Given>
void share_by(const Given& given, const rows::ArgsOf<Given>& a, const Sharing& by) {
  using Op = typename Given::Again;
  using T = typename Op::T;
  constexpr int VEC = rows::kRowVec<T>, THREADS = 64;
  const Op op = given.again();
  const auto piece = static_cast<int>(ceil_div(ceil_div(a.n, VEC), by.pieces) * VEC);
  rows::LongPlan row{static_cast<int>(by.pieces), static_cast<int>(by.each), piece,
                     smem_bytes_for<T>(by.each * piece)};
  const auto size = static_cast<int>(ceil_div(by.pieces, by.each));
  if (by.how == kCluster) {
    const auto kernel = rows::row_long_kernel<Op, VEC, WHOLE, THREADS>;
    return emulator::together(kernel, a.rows * size, size, THREADS, a, op, row);
  }
  const int64_t words = 2 * by.groups * by.pieces * rows::part_words<Op>();
  std::vector<uint64_t> board(words, uint64_t{1} << 32);  // as if the first parts were there
  const rows::GridPlan plan{row, size, static_cast<int>(by.groups), board.data()};
  const auto held = rows::row_grid_kernel<Op, VEC, WHOLE, THREADS, true>;
  const auto again = rows::row_grid_kernel<Op, VEC, WHOLE, THREADS, false>;
  emulator::together(by.how == kHeld ? held : again, plan.groups * size, 1, THREADS, a, op, plan);
}

// Calls f with whether kernels of WHOLE rows are for these.
template <typename Op, typename F>
void if_whole(const Op& op, const rows::ArgsOf<Op>& a, const F& f) {
  using T = typename Op::T;
  if constexpr (rows::kRowVec<T> == 1) {
    f(std::true_type{});
  } else {
    bool whole = op.aligned() && a.n % kVec<T> == 0;
    if constexpr (Op::OUTPUTS > 0) whole = whole && aligned<T>(a.out.of[0], a.n);
    for (int k = 0; k < Op::INPUTS; ++k) whole = whole && aligned<T>(a.in[k], a.stride[k]);
    whole ? f(std::true_type{}) : f(std::false_type{});
  }
}

template <typename Op>
void share(const Op& op, const rows::ArgsOf<Op>& a, const Sharing& by) {
  if_whole(op, a, [&](auto whole) { share_by<decltype(whole)::value>(op, a, by); });
}

}  // namespace
