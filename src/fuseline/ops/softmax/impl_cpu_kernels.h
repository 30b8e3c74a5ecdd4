// The softmax over rows and columns for the instruction set the including file is built for.
// Everything is in an unnamed namespace: what the linker merges could carry wider instructions than
// the processor has.
#pragma once

#include "fuseline/cpu/softmax_columns_kernels.h"

namespace fuseline::softmax {
namespace {

// Longer rows: exponentials wait in y if it can hold them, else they are computed twice. On its
// own, so that the compiler inlines what shorter rows need.
template <class X>
__attribute__((noinline)) void forward_long(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const y = static_cast<X*>(a.y) + row * a.n;
    const C m = max_row<C>(x, a.n);
    if constexpr (std::is_same_v<X, C>) {
      const C scale = static_cast<C>(1 / exp_row<C>(x, m, y, a.n, x, y));
      for (int64_t i = 0; i < a.n; ++i) y[i] *= scale;
    } else {
      const C scale = static_cast<C>(1 / sum_exp<C>(x, m, a.n, x, y, [](auto...) {}));
      each_vector<C>(a.n, [=](int64_t i, auto part) {
        store<C>(y + i, vexp<C>(load<C>(x + i, part) - m) * scale, part);
      });
    }
  }
}

// y = exp(x - m) / sum(exp(x - m)), m = max(x). Reads x (twice). Writes y.
template <class X>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  if (a.n * static_cast<int64_t>(sizeof(C)) > kMostKept) return forward_long<X>(a, first, last);
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
  each_strip_or_again<C>(a.n, a.inner, first, last,
                         [&](const auto& s, int64_t slice, int64_t column) {
                           const X* const x = x_at<X>(a, slice, column);
                           const auto m = s.read_max(0, x, a.x_step);
                           const auto exponential = [&](int64_t row, int k) {
                             return vexp<C>(s.read_before(x, a.x_step, row, k) - m.of[k]);
                           };
                           const auto scale = s.sum(
                               [&](int64_t row, int k) {
                                 const Vector<C> e = exponential(row, k);
                                 if constexpr (s.kKeeps) s.at(0, row)[k] = e;
                                 return e;
                               },
                               [](const Vector<double>& sum) { return 1 / sum; });
                           s.write(y_at<X>(a, slice, column), a.inner, [&](int64_t row, int k) {
                             if constexpr (s.kKeeps) {
                               return s.at(0, row)[k] * scale.of[k];
                             } else {
                               return exponential(row, k) * scale.of[k];
                             }
                           });
                         });
}

template <class X>
constexpr auto kForward = forward_rows<X, forward<X>, columns<X>>;

constexpr Kernels kKernels = {
    {kForward<double>, kForward<float>, kForward<f16>, kForward<bf16>},
    {columns<double>, columns<float>, columns<f16>, columns<bf16>},
    {kGradientOfRows<double>, kGradientOfRows<float>, kGradientOfRows<f16>, kGradientOfRows<bf16>},
    {columns_gradient<double, OfSoftmax>, columns_gradient<float, OfSoftmax>,
     columns_gradient<f16, OfSoftmax>, columns_gradient<bf16, OfSoftmax>}};

}  // namespace
}  // namespace fuseline::softmax
