// The logarithm of the softmax over rows and columns, and its gradient, for the instruction set the
// including file is built for. Everything is in an unnamed namespace: what the linker merges could
// carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/softmax_columns_kernels.h"

namespace fuseline::log_softmax {
namespace {

// Short rows wait for their logarithms together.
constexpr int64_t kMostRows = 16;
constexpr int64_t batch_of(int64_t n) { return n <= 256 ? kMostRows : 1; }

// y = x - m - log(sum(exp(x - m))), m = max(x), a batch of rows at a time. Reads x (three times).
// Writes y.
template <class X>
void forward(const softmax::ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const int64_t n = a.n, batch = batch_of(n);
  C m[kMostRows];
  double log[kMostRows] = {};
  for (int64_t row = first; row < last; row += batch) {
    const int64_t count = last - row < batch ? last - row : batch;
    const X* const xs = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const ys = static_cast<X*>(a.y) + row * n;
    for (int64_t r = 0; r < count; ++r) m[r] = softmax::max_row<C>(xs + r * a.x_stride, n);
    for (int64_t r = 0; r < count; ++r) {
      const X* const x = xs + r * a.x_stride;
      const X* const next = softmax::next_row(x, batch * a.x_stride, n);
      log[r] = softmax::sum_exp<C>(x, m[r], n, next, ys + r * n, [](auto...) {});
    }
    for (int64_t r = 0; r < count; r += kLanes<double>) {
      store<double>(log + r, vlog(load<double>(log + r, Whole{})), Whole{});
    }
    for (int64_t r = 0; r < count; ++r) {
      // Two steps: m + log would round away what of the logarithm a large m has no digits for.
      each_vector<C>(n, [=, x = xs + r * a.x_stride, m = m[r], l = static_cast<C>(log[r])](
                            int64_t i, auto part) {
        store<C>(ys + r * n + i, (load<C>(x + i, part) - m) - l, part);
      });
    }
  }
}

// dx = dy - exp(y) * sum(dy). Reads dy (twice) and y. Writes dx.
template <class X>
void gradient(const softmax::GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const dy = static_cast<const X*>(a.dy) + row * a.dy_stride;
    const X* const y = static_cast<const X*>(a.saved) + row * a.saved_stride;
    const X* const next_dy = softmax::next_row(dy, a.dy_stride, a.n);
    const X* const next_y = softmax::next_row(y, a.saved_stride, a.n);
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const C sum = static_cast<C>(sum_row<C>(a.n, [=](int64_t i, auto part) {
      __builtin_prefetch(dx + i, 1);
      return load<C>(dy + i, part);
    }));
    each_vector<C>(a.n, [=](int64_t i, auto part) {
      __builtin_prefetch(next_dy + i);
      __builtin_prefetch(next_y + i);
      store<C>(dx + i, load<C>(dy + i, part) - vexp<C>(load<C>(y + i, part)) * sum, part);
    });
  }
}

// The forward over columns. Reads x. Writes y.
template <class X>
void columns(const softmax::ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  softmax::each_strip_or_again<C>(
      a.n, a.inner, first, last, [&](const auto& s, int64_t slice, int64_t column) {
        const X* const x = softmax::x_at<X>(a, slice, column);
        const auto m = s.read_max(0, x, a.x_step);
        const auto shifted = [&](int64_t row, int k) {
          return s.read_before(x, a.x_step, row, k) - m.of[k];
        };
        const auto log = s.sum([&](int64_t row, int k) { return vexp<C>(shifted(row, k)); }, vlog);
        s.write(softmax::y_at<X>(a, slice, column), a.inner,
                [&](int64_t row, int k) { return shifted(row, k) - log.of[k]; });
      });
}

template <class X>
constexpr auto kForward = softmax::forward_rows<X, forward<X>, columns<X>>;
constexpr softmax::Kernels kKernels = {
    {kForward<double>, kForward<float>, kForward<f16>, kForward<bf16>},
    {columns<double>, columns<float>, columns<f16>, columns<bf16>},
    {gradient<double>, gradient<float>, gradient<f16>, gradient<bf16>},
    {softmax::columns_gradient<double, softmax::OfLogSoftmax>,
     softmax::columns_gradient<float, softmax::OfLogSoftmax>,
     softmax::columns_gradient<f16, softmax::OfLogSoftmax>,
     softmax::columns_gradient<bf16, softmax::OfLogSoftmax>}};

}  // namespace
}  // namespace fuseline::log_softmax
