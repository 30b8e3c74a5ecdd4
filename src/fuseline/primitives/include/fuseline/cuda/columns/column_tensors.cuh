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
                                   : launch_columns(a, op, stream, Scratch(device)));
}

template <typename Op, typename... Inputs>
void run_along(const Op& op, int64_t dim, const Tensor& out, const Inputs&... inputs) {
  run_along(op, dim, Made<Op>{out}, inputs...);
}

// Runs along the last dimension in an order in which `made`, which is written, is contiguous.
template <typename Op, typename... Inputs>
void run_in(const MemoryOrder& order, const Op& op, const Tensor& made, const Inputs&... inputs) {
  run_along(op, order.place_of(made.dim() - 1), made, order.of(inputs)...);
}

}  // namespace fuseline::rows
