// Runs operators of row_cuda.cuh on tensors.
#pragma once

#include <array>
#include <optional>

#include "fuseline/cuda/launch/cuda_rows.h"
#include "fuseline/cuda/launch/row_launch.cuh"

namespace fuseline::rows {

// Memory that blocks exchange their parts through, which only few long rows ask for.
class Scratch {
 public:
  explicit Scratch(Device device) : device_(device) {}
  void* operator()(int64_t bytes) {
    const int64_t count = (bytes + 7) / 8;
    memory_ = allocate(IntHeaderOnlyArrayRef(&count, 1), ScalarType::Double, device_);
    return memory_->mutable_data_ptr();
  }

 private:
  Device device_;
  std::optional<Tensor> memory_;
};

// The tensors that an operator writes.
template <typename Op>
using Made = std::array<Tensor, Op::OUTPUTS>;

// Writes `made`, contiguous; the inputs are of its shape and of dtype Op::T.
template <typename Op, typename... Inputs>
void run(const Op& op, const Made<Op>& made, const Inputs&... inputs) {
  static_assert(sizeof...(inputs) == Op::INPUTS);
  const Rows views[] = {rows_of(inputs, true)...};
  if (views[0].rows == 0) return;
  const Device device = device_of(views[0].tensor);
  const DeviceScope scope(device.index);
  ArgsOf<Op> a{};
  for (int k = 0; k < Op::INPUTS; ++k) {
    a.in[k] = static_cast<const typename Op::T*>(views[k].data());
    a.stride[k] = views[k].stride;
    a.gap[k] = views[k].step - 1;
  }
  if constexpr (Op::OUTPUTS > 0) {
    for (int k = 0; k < Op::OUTPUTS; ++k) {
      a.out.of[k] = static_cast<Written<Op>*>(made[k].mutable_data_ptr());
    }
  }
  a.rows = views[0].rows;
  a.n = views[0].n;
  FUSELINE_CUDA_CHECK(launch(a, op, current_stream(device.index), Scratch(device)));
}

template <typename Op, typename... Inputs>
void run(const Op& op, const Tensor& out, const Inputs&... inputs) {
  run(op, Made<Op>{out}, inputs...);
}

}  // namespace fuseline::rows
