// Columns for operators of row_cuda.cuh, chosen and launched as on a GPU of so many
// multiprocessors.
#pragma once

#include "emulator.h"
#include "fuseline/cuda/columns/column_launch.cuh"

namespace columns {

using namespace fuseline::rows;

// Along the n elements of [outer, n, inner], contiguous but for `gap` elements after each slice.
template <typename Op>
ColumnArgsOf<Op> of(const typename Op::T* x, int64_t outer, int64_t n, int64_t inner, int64_t gap) {
  ColumnArgsOf<Op> a{};
  for (int k = 0; k < Op::INPUTS; ++k) {
    a.in[k] = x;
    a.stride[k] = n * inner + gap;
    a.step[k] = inner;
  }
  a.rows = outer * inner;
  a.n = n;
  a.inner = inner;
  return a;
}

// What blocks leave for each other is in memory of which nothing was written.
template <typename Op>
void launch(const ColumnArgsOf<Op>& a, const Op& op, int64_t sms) {
  std::vector<unsigned char> memory;
  const auto allocate = [&](int64_t bytes) {
    memory.assign(static_cast<size_t>(bytes), 0xff);
    return memory.data();
  };
  launch_columns(a, op, nullptr, allocate, static_cast<int>(sms));
}

}  // namespace columns
