// Runs elementwise operators on tensors.
#pragma once

#include <array>

#include "fuseline/core/cpp/cuda.h"
#include "fuseline/core/cpp/layout.h"
#include "fuseline/cuda/pointwise/pointwise_launch.cuh"

namespace fuseline::pointwise {

// An input, seen as of the output's shape; owns its copy if there is one.
struct Operand {
  Tensor tensor;
  int64_t steps[kMaxDim] = {};
};

// `t`, which is of the shape of `to`, where it lies or, if that takes less time, as `to` does.
inline Operand operand(const Tensor& t, const Tensor& to) {
  const auto from = t.strides(), order = to.strides();
  const bool copied =
      !lie_alike(t, to) && is_copied(to.sizes().data(), from.data(), order.data(), to.dim());
  Operand found{copied ? counted_as(t, to) : t};
  const auto steps = found.tensor.strides();
  std::copy(steps.begin(), steps.end(), found.steps);
  return found;
}

// A vector along the last dimension.
inline Operand along_last(const Tensor& t, const Tensor& to) {
  Operand found{t};
  found.steps[to.dim() - 1] = t.strides()[0];
  return found;
}

// The axes of `operands` and `to`, which is dense. What lies in too many is copied to lie as `to`.
template <size_t INPUTS>
Axes<INPUTS + 1> axes_of(std::array<Operand, INPUTS>& operands, const Tensor& to) {
  for (bool again = true;; again = false) {
    const int64_t* strides[INPUTS + 1];
    for (size_t k = 0; k < INPUTS; ++k) strides[k] = operands[k].steps;
    strides[INPUTS] = to.strides().data();
    const auto axes = fuseline::axes_of<INPUTS + 1>(to.sizes().data(), strides, to.dim());
    if (axes) return *axes;
    STD_TORCH_CHECK(again, "no elements");
    for (Operand& o : operands) {
      if (o.tensor.dim() != to.dim()) continue;
      o.tensor = counted_as(o.tensor, to);
      std::copy_n(to.strides().begin(), to.dim(), o.steps);
    }
  }
}

// Writes `to`, which has elements.
template <typename Op>
void run(std::array<Operand, Op::INPUTS> operands, const Tensor& to) {
  using T = typename Op::T;
  const auto axes = axes_of(operands, to);
  Problem<Op> a{};
  for (int k = 0; k < Op::INPUTS; ++k) {
    a.in[k] = static_cast<const T*>(operands[k].tensor.const_data_ptr());
  }
  a.to = static_cast<T*>(to.mutable_data_ptr());
  const Device device = device_of(to);
  FUSELINE_CUDA_CHECK(launch(a, axes, sm_count(device.index), current_stream(device.index)));
}

}  // namespace fuseline::pointwise
