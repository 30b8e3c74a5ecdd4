// Runs operators of row_cuda.cuh along one dimension of tensors.
#pragma once

#include "fuseline/core/cpp/layout.h"
#include "fuseline/cuda/columns/column_launch.cuh"
#include "fuseline/cuda/launch/row_tensors.cuh"

namespace fuseline::rows {

// The same along `dim`, which counts from the first.
template <typename Op, typename... Inputs>
void run_along(const Op& op, int64_t dim, const Made<Op>& made, const Inputs&... inputs) {
  static_assert(sizeof...(inputs) == Op::INPUTS);
  const Columns views[] = {columns_of(inputs, dim)...};
  ColumnArgsOf<Op> a{};
  a.rows = views[0].outer * views[0].inner;
  if (a.rows == 0) return;
  const Device device = device_of(views[0].tensor);
  const DeviceScope scope(device.index);
  for (int k = 0; k < Op::INPUTS; ++k) {
    a.in[k] = static_cast<const typename Op::T*>(views[k].data());
    a.stride[k] = views[k].stride;
    a.step[k] = views[k].step;
  }
  if constexpr (Op::OUTPUTS > 0) {
    for (int k = 0; k < Op::OUTPUTS; ++k) {
      a.out.of[k] = static_cast<typename Op::T*>(made[k].mutable_data_ptr());
    }
  }
  a.n = views[0].n;
  a.inner = views[0].inner;
  const cudaStream_t stream = current_stream(device.index);
  FUSELINE_CUDA_CHECK(a.inner == 1 ? launch<Op>(a, op, stream, Scratch(device))
                                   : launch_columns(a, op, stream));
}

template <typename Op, typename... Inputs>
void run_along(const Op& op, int64_t dim, const Tensor& out, const Inputs&... inputs) {
  run_along(op, dim, Made<Op>{out}, inputs...);
}

// The order in which an operator along the last dimension runs over tensors that lie as `like`,
// dense: that of memory, or their own where it would have few long columns: those of so few blocks
// take longer than copies to rows and back. Not measured yet.
inline MemoryOrder order_for(const Tensor& like) {
  constexpr int64_t kFewBlocks = 32, kLong = 2048;
  const int64_t last = like.dim() - 1, n = like.sizes()[last];
  if (n > kLong && like.strides()[last] > 1) {
    const int64_t bytes = like.numel() / n * static_cast<int64_t>(like.element_size());
    if (bytes < kFewBlocks * kLine) return MemoryOrder(like.dim());
  }
  return MemoryOrder(like);
}

// Runs along the last dimension in such an order; writes `made`.
template <typename Op, typename... Inputs>
void run_in(const MemoryOrder& order, const Op& op, const Tensor& made, const Inputs&... inputs) {
  const int64_t dim = order.place_of(made.dim() - 1);
  Tensor out = order.of(made);
  if (out.is_contiguous()) return run_along(op, dim, out, order.of(inputs)...);
  const Tensor rows = allocate_like(out);
  run_along(op, dim, rows, order.of(inputs)...);
  count_copy();
  torch::stable::copy_(out, rows);
}

}  // namespace fuseline::rows
