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

// What has one element for each row, the last dimension.
inline Operand of_rows(const Tensor& t) {
  Operand found{t};
  const auto steps = t.strides();
  std::copy(steps.begin(), steps.end(), found.steps);
  return found;
}

// Copies what is not dense, in the order in which `to` has its dimensions: all, or all but the
// last. A vector along the last one stays.
inline void densify(Operand& o, const Tensor& to) {
  const int64_t dims = o.tensor.dim();
  if (dims + 1 < to.dim()) return;
  const auto sizes = to.sizes(), order = to.strides();
  bool dense = true;
  for (int64_t d = 0; d < dims; ++d) {
    o.steps[d] = 1;
    for (int64_t e = 0; e < dims; ++e) o.steps[d] *= order[e] < order[d] ? sizes[e] : 1;
    dense &= sizes[d] == 1 || o.steps[d] == o.tensor.strides()[d];
  }
  if (dense) return;
  Tensor copy = allocate(o.tensor.sizes(), {o.steps, static_cast<size_t>(dims)},
                         o.tensor.scalar_type(), device_of(o.tensor));
  copy_into(copy, o.tensor);
  o.tensor = copy;
}

// The axes of `operands` and `to`. What lies in too many is copied, in the order of `to`.
template <size_t SIDES>
Axes<SIDES + 1> axes_of(std::array<Operand, SIDES>& operands, const Tensor& to) {
  for (bool again = true;; again = false) {
    const int64_t* strides[SIDES + 1];
    for (size_t k = 0; k < SIDES; ++k) strides[k] = operands[k].steps;
    strides[SIDES] = to.strides().data();
    const auto axes = fuseline::axes_of<SIDES + 1>(to.sizes().data(), strides, to.dim());
    if (axes) return *axes;
    STD_TORCH_CHECK(again, "no elements");
    for (Operand& o : operands) densify(o, to);
  }
}

// Writes `to`, which has elements, and `others`, which lie as it does.
template <typename Op, typename... Others>
void run(std::array<Operand, kSides<Op>> operands, const Tensor& to, const Others&... others) {
  using T = typename Op::T;
  const auto axes = axes_of(operands, to);
  Problem<Op> a{};
  for (int k = 0; k < kSides<Op>; ++k) a.in[k] = operands[k].tensor.const_data_ptr();
  static_assert(Op::OUTPUTS == 1 + sizeof...(others));
  T* const results[] = {static_cast<T*>(to.mutable_data_ptr()),
                        static_cast<T*>(others.mutable_data_ptr())...};
  std::copy_n(results, Op::OUTPUTS, a.to);
  const Device device = device_of(to);
  FUSELINE_CUDA_CHECK(launch(a, axes, sm_count(device.index), current_stream(device.index)));
}

}  // namespace fuseline::pointwise
