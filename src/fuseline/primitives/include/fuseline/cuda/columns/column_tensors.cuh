// Runs operators of row_cuda.cuh along one dimension of tensors.
#pragma once

#include "fuseline/core/cpp/layout.h"
#include "fuseline/cuda/columns/column_launch.cuh"
#include "fuseline/cuda/launch/row_tensors.cuh"

namespace fuseline::rows {

// The same along `dim`, which counts from the first; columns have what is theirs in `places`.
template <typename Op, typename... Inputs>
void run_along(const Op& op, int64_t dim, const ColumnPlaces& places, const Made<Op>& made,
               const Inputs&... inputs) {
  static_assert(sizeof...(inputs) == Op::INPUTS);
  const Columns views[] = {columns_of(inputs, dim, true)...};
  ColumnArgsOf<Op> a{};
  a.rows = views[0].outer * views[0].inner;
  if (a.rows == 0) return;
  const Device device = device_of(views[0].tensor);
  const DeviceScope scope(device.index);
  for (int k = 0; k < Op::INPUTS; ++k) {
    a.in[k] = static_cast<const typename Op::T*>(views[k].data());
    a.stride[k] = views[k].stride;
    a.step[k] = views[k].step;
    if (views[k].inner == 1) a.gap[k] = views[k].step - 1;
  }
  if constexpr (Op::OUTPUTS > 0) {
    for (int k = 0; k < Op::OUTPUTS; ++k) {
      a.out.of[k] = static_cast<typename Op::T*>(made[k].mutable_data_ptr());
    }
  }
  a.n = views[0].n;
  a.inner = views[0].inner;
  a.places = places;
  const cudaStream_t stream = current_stream(device.index);
  FUSELINE_CUDA_CHECK(a.inner == 1 ? launch<Op>(a, op, stream, Scratch(device))
                                   : launch_columns(a, op, stream, Scratch(device)));
}

template <typename Op, typename... Inputs>
void run_along(const Op& op, int64_t dim, const Made<Op>& made, const Inputs&... inputs) {
  run_along(op, dim, ColumnPlaces{}, made, inputs...);
}

template <typename Op, typename... Inputs>
void run_along(const Op& op, int64_t dim, const Tensor& out, const Inputs&... inputs) {
  run_along(op, dim, Made<Op>{out}, inputs...);
}

// An operator along the last dimension of `x`, in `order`, and its tensors of one element a row.
// Kernels of columns find their places in the logical order; what belongs to rows, or to columns of
// too many dimensions, is copied where that order is another.
class InOrder {
 public:
  InOrder(const MemoryOrder& order, const Tensor& x)
      : order_(order), x_(x), dim_(order.place_of(x.dim() - 1)) {
    const auto places = order.places_of_rows(x);
    if (places.empty()) return;
    copies_ = places.size() > 3 || !has_columns() || x.numel() > UINT32_MAX;
    for (size_t i = 0; i < places.size() && !copies_; ++i) {
      const size_t at = 3 - places.size() + i;
      places_.steps[at] = places[i][1];
      if (at > 0) places_.sizes[at - 1] = static_cast<unsigned>(places[i][0]);
    }
  }

  Tensor allocate(ScalarType dtype) const {
    return copies_ ? order_.allocate_one_a_row(x_, dtype) : allocate_one_a_row(x_, dtype);
  }
  Tensor made(const Tensor& t) const { return copies_ ? order_.undo_rows(t) : t; }

  template <typename Op>
  void run(const Op& op, const Made<Op>& made) const {
    run_along(op, dim_, places_, made, order_.of(x_));
  }

 private:
  bool has_columns() const {
    const Tensor ordered = order_.of(x_);
    int64_t inner = 1;
    for (int64_t d = dim_ + 1; d < x_.dim(); ++d) inner *= ordered.sizes()[d];
    return inner > 1;
  }

  const MemoryOrder& order_;
  const Tensor& x_;
  int64_t dim_;
  bool copies_ = false;
  ColumnPlaces places_{};
};

}  // namespace fuseline::rows
