// The CPU halves of gated operators around their kernels.
#pragma once

#include "fuseline/cpu/gated/gated_rows.h"
#include "fuseline/cpu/rows_cpu.h"
#include "fuseline/gated_args.h"

namespace fuseline::gated {

// Rows of fewer elements are copied where gaps are between: a kernel's step over a row takes a
// vector or less.
constexpr int64_t kFew = 16;

// Calls the kernel on all of these tensors, which have elements: in the order in which the results
// have them, as one row if all lie alike.
template <size_t IN, size_t OUT>
void run(Kernel kernel, const Tensor (&given)[IN], const Tensor (&out)[OUT]) {
  Rows rows{};
  const int64_t numel = out[0].numel();
  bool one = is_dense(out[0]);
  const bool few = one && out[0].sizes()[out[0].dim() - 1] < kFew;
  Tensor in[IN];
  for (size_t k = 0; k < IN; ++k) {
    in[k] = few ? counted_as(given[k], out[0]) : given[k];
    one = one && lie_alike(in[k], out[0]);
  }
  for (size_t k = 0; k < OUT; ++k) rows.out[k] = out[k].mutable_data_ptr();
  if (one) {
    for (size_t k = 0; k < IN; ++k) rows.in[k] = in[k].const_data_ptr();
    return parallel(numel, 1,
                    [&](int64_t first, int64_t last) { kernel(rows, {0, 1, first, last}); });
  }
  // Results with gaps are halves of contiguous ones.
  const MemoryOrder order = is_dense(out[0]) ? MemoryOrder(out[0]) : MemoryOrder(out[0].dim());
  Tensor kept[IN];
  for (size_t k = 0; k < IN; ++k) {
    const auto [tensor, count, n, stride, step] = rows_of(order.of(in[k]));
    kept[k] = tensor;
    rows.in[k] = tensor.const_data_ptr();
    rows.strides[k] = stride;
  }
  const Tensor to = order.of(out[0]);
  const int64_t n = to.sizes()[to.dim() - 1];
  rows.out_stride = *row_stride(to);
  parallel(numel / n, n, [&](int64_t first, int64_t last) { kernel(rows, {first, last, 0, n}); });
}

inline Tensor forward(const NormArgs& args, const Kernels& kernels, const Tensor& a,
                      const std::optional<Tensor>& b) {
  const Sides of(args, a, b);
  const Tensor y = allocate_result(of, !b);
  if (y.numel() > 0) {
    run(kernels.forward[static_cast<int>(element_of(a))], {of.a, of.b}, {y});
  }
  return y;
}

inline std::tuple<Tensor, Tensor> backward(const NormArgs& args, const Kernels& kernels,
                                           const Tensor& dy, const Tensor& a,
                                           const std::optional<Tensor>& b) {
  const Sides of(args, a, b);
  args.check_twin("dy", dy, of.a);
  Gradients grads = b ? Gradients(a) : Gradients(Gradients::Packed{allocate_like(a)});
  if (dy.numel() > 0) {
    const Kernel kernel = kernels.backward[static_cast<int>(element_of(a))];
    run(kernel, {of.a, of.b, dy}, {grads.da, grads.db});
  }
  auto& first = std::get<0>(grads.given);
  if (!b && !a.is_contiguous()) first = counted_as(first, allocate_as(a));
  return grads.given;
}

}  // namespace fuseline::gated
