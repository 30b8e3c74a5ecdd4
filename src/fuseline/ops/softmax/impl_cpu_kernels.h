// The softmax over rows and columns for the instruction set the including file is built for.
// Everything is in an unnamed namespace: what the linker merges could carry wider instructions than
// the processor has.
#pragma once

#include "fuseline/softmax_columns_kernels.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::softmax {
namespace {

// y = exp(x - m) / sum(exp(x - m)), m = max(x). Reads x (twice). Writes y.
template <class X>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const Scratch<C> scratch(1, a.n);
  C* const e = scratch.row(0);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const y = static_cast<X*>(a.y) + row * a.n;
    const X* const next = next_row(x, a.x_stride, a.n);
    const double sum = exp_row<C>(x, max_row<C>(x, a.n), e, a.n, next, y);
    scale_row<C>(e, y, a.n, static_cast<C>(1 / sum));
  }
}

// The same over columns. Reads x. Writes y.
template <class X>
void columns(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  each_strip<C, 1>(a.n, a.inner, first, last, [&](const auto& s, int64_t slice, int64_t column) {
    const auto m = s.read_max(0, x_at<X>(a, slice, column), a.x_step);
    const auto scale = s.sum(
        [&](int64_t row, int k) {
          Vector<C>& e = s.at(0, row)[k];
          return e = vexp<C>(e - m.of[k]);
        },
        [](const Vector<double>& sum) { return 1 / sum; });
    s.write(y_at<X>(a, slice, column), a.inner,
            [&](int64_t row, int k) { return s.at(0, row)[k] * scale.of[k]; });
  });
}

constexpr Kernels kKernels = {
    {forward<double>, forward<float>, forward<f16>, forward<bf16>},
    {columns<double>, columns<float>, columns<f16>, columns<bf16>},
    {gradient<double>, gradient<float>, gradient<f16>, gradient<bf16>},
    {columns_gradient<double, OfSoftmax>, columns_gradient<float, OfSoftmax>,
     columns_gradient<f16, OfSoftmax>, columns_gradient<bf16, OfSoftmax>}};

}  // namespace
}  // namespace fuseline::softmax
