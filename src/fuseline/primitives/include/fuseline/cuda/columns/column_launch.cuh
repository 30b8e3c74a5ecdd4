// Chooses kernel and block for columns by their length and alignment only, so that a column's
// result does not depend on the batch.
#pragma once

#include "fuseline/cuda/columns/column_cuda.cuh"
#include "fuseline/cuda/launch/row_launch.cuh"

namespace fuseline::rows {
namespace {

// Not measured yet: the threads that most blocks have; bytes side by side that long columns are
// read in, if a block has threads enough, and the least; threads of one that reads them again.
constexpr int kColumnBlock = 256, kLine = 64, kSector = 32, kAgainBlock = 512;

// Elements of each input that a thread holds, in half of its registers, or less where an operator
// keeps more besides.
template <typename Op>
constexpr int kHeld =
    (Op::ROUNDS > 1 ? 24 : 32) * 4 / static_cast<int>(Op::INPUTS * sizeof(typename Op::S));

template <typename Op, int VEC>
constexpr int width_of(int bytes) {
  return bytes / (VEC * static_cast<int>(sizeof(typename Op::T)));
}

template <typename Op>
unsigned column_blocks(const ColumnArgsOf<Op>& a, int columns) {
  return static_cast<unsigned>(ceil_div(a.rows, columns));
}

template <int VEC, int ITEMS, typename Op>
void launch_columns_held(const ColumnArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  const auto kernel = column_kernel<Op, VEC, ITEMS>;
  const int depth = 1 << log2_at_least(ceil_div(a.n, ITEMS));
  const int width =
      std::min(std::max(kColumnBlock / depth, width_of<Op, VEC>(kLine)), kMaxBlock / depth);
  kernel<<<column_blocks<Op>(a, width * VEC), width * depth, 0, stream>>>(a, op, width);
}

template <int VEC, typename Op>
void launch_columns_of(const ColumnArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  constexpr int ITEMS = kHeld<Op> / VEC, FEW = std::max(1, ITEMS / 4);
  constexpr int MOST = kMaxBlock / width_of<Op, VEC>(kSector) * ITEMS;
  if (a.n <= 8 * FEW) return launch_columns_held<VEC, FEW>(a, op, stream);
  if (a.n <= MOST) return launch_columns_held<VEC, ITEMS>(a, op, stream);
  using Again = typename Op::Again;
  constexpr int WIDTH = width_of<Op, VEC>(kLine);
  const auto kernel = column_again_kernel<Again, VEC, 4, kAgainBlock>;
  kernel<<<column_blocks<Op>(a, WIDTH * VEC), kAgainBlock, 0, stream>>>(a, op.again(), WIDTH);
}

template <typename Op>
cudaError_t launch_columns(const ColumnArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
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
  wide ? launch_columns_of<VEC>(a, op, stream) : launch_columns_of<1>(a, op, stream);
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline::rows
