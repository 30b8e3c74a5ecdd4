// Runs gated operators on tensors.
#pragma once

#include "fuseline/cuda/pointwise/gated.cuh"
#include "fuseline/cuda/pointwise/pointwise_tensors.cuh"
#include "fuseline/gated_args.h"

namespace fuseline::gated {

template <typename G>
Tensor forward(const NormArgs& args, const Tensor& a, const std::optional<Tensor>& b) {
  const Sides of(args, a, b);
  const Tensor y = allocate_result(of, !b);
  if (y.numel() == 0) return y;
  const DeviceScope scope(device_of(a).index);
  for_dtype(a.scalar_type(), [&](auto* type) {
    using Op = Forward<G, std::remove_pointer_t<decltype(type)>>;
    pointwise::run<Op>({pointwise::operand(of.a, y), pointwise::operand(of.b, y)}, y);
  });
  return y;
}

template <typename G>
std::tuple<Tensor, Tensor> backward(const NormArgs& args, const Tensor& dy, const Tensor& a,
                                    const std::optional<Tensor>& b) {
  const Sides of(args, a, b);
  args.check_twin("dy", dy, of.a);
  const Gradients grads = b ? Gradients(a) : Gradients(Gradients::Packed{allocate_as(a)});
  if (dy.numel() == 0) return grads.given;
  const DeviceScope scope(device_of(a).index);
  const Tensor &da = grads.da, &db = grads.db;
  const auto operand = [&](const Tensor& t) { return pointwise::operand(t, da); };
  for_dtype(a.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (b) {
      pointwise::run<Backward<G, false, T>>({operand(of.a), operand(of.b), operand(dy)}, da, db);
    } else {
      pointwise::run<Backward<G, true, T>>({operand(of.a), operand(of.b), operand(dy)}, da, db);
    }
  });
  return grads.given;
}

}  // namespace fuseline::gated
