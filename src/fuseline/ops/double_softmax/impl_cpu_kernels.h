// The softmax of the softmax over rows and columns, and its gradient, for the instruction set the
// including file is built for. Everything is in an unnamed namespace: what the linker merges could
// carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/softmax_columns_kernels.h"

namespace fuseline::double_softmax {
namespace {

// What a row's results are made of: p = exp(x - m) * first, y = exp(p - first) * second.
template <class C>
struct Stats {
  C m;
  C first;  // 1 / sum(exp(x - m)), the largest p
  C second;
};

// e^d for -1 <= d <= 0, within 3 ULP, 1 at 0: what the second softmax takes of probabilities less
// the largest needs no powers of two, and half as many operations as vexp. A NaN stays.
template <class C>
__attribute__((always_inline)) inline Vector<C> exp_of_difference(const Vector<C>& d) {
  if constexpr (sizeof(C) == 8) {
    return polynomial<C>(d, 1.0, 1.0, 0.4999999999999964, 0.1666666666664944, 0.041666666663443576,
                         0.008333333302138762, 0.0013888887104824001, 0.0001984120502317959,
                         2.4800032289946006e-05, 2.753231109497008e-06, 2.7289403227036547e-07,
                         2.3200975871202737e-08, 1.3221480811326931e-09);
  } else {
    return polynomial<C>(d, 1.0f, 1.0f, 0.4999997913837433f, 0.16666340827941895f,
                         0.04164684936404228f, 0.008275505155324936f, 0.0013007749803364277f,
                         0.00012907630298286676f);
  }
}

// Reads x (twice). Writes y and the statistics where their pointers are not null.
template <class X>
void forward(const softmax::ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const softmax::Scratch<C> scratch(1, a.n);
  C* const e = scratch.row(0);
  const int64_t padded = softmax::padded<C>(a.n);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const y = static_cast<X*>(a.y) + row * a.n;
    Stats<C> s;
    s.m = softmax::max_row<C>(x, a.n);
    const X* const next = softmax::next_row(x, a.x_stride, a.n);
    s.first = static_cast<C>(1 / softmax::exp_row<C>(x, s.m, e, a.n, next, y));
    // Whole vectors, since the next pass overwrites what it reads; the added ones give 0.
    for (int64_t i = a.n; i < padded; ++i) e[i] = softmax::kLeast<C>;
    s.second = static_cast<C>(1 / sum_row<C>(padded, [=](int64_t i, auto part) {
                                const auto v = vexp<C>(load<C>(e + i, part) * s.first - s.first);
                                store<C>(e + i, v, part);
                                return v;
                              }));
    softmax::scale_row<C>(e, y, a.n, s.second);
    if (a.stats) static_cast<Stats<C>*>(a.stats)[row] = s;
  }
}

// Elements of a row of n, and zeros after its end.
template <class C, class X>
inline Vector<C> load_within(const X* row, int64_t i, int64_t n) {
  return i + kLanes<C> <= n ? load<C>(row + i, Whole{})
                            : load<C>(row + i, Short{static_cast<int>(n - i)});
}

// dp = y * (dy - sum(dy * y)), dx = p * (dp - sum(dp * p)). Reads dy (twice) and x. Writes dx.
template <class X>
void gradient(const softmax::GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const softmax::Scratch<C> scratch(2, a.n);
  C *const p = scratch.row(0), *const y = scratch.row(1);
  const int64_t n = a.n, padded = softmax::padded<C>(n), whole = n - n % kLanes<C>;
  const Short rest{static_cast<int>(n - whole)};
  for (int64_t row = first; row < last; ++row) {
    const X* const dy = static_cast<const X*>(a.dy) + row * a.dy_stride;
    const X* const x = static_cast<const X*>(a.saved) + row * a.saved_stride;
    const X* const next_dy = softmax::next_row(dy, a.dy_stride, a.n);
    const X* const next_x = softmax::next_row(x, a.saved_stride, a.n);
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const Stats<C> s = static_cast<const Stats<C>*>(a.stats)[row];
    // One exponential at a time: vectors of both at once took half as long again. No vector of
    // what is kept overlaps another, for what is read again at once would wait.
    const auto first_of = [=](int64_t i, auto part) {
      __builtin_prefetch(next_dy + i);
      __builtin_prefetch(next_x + i);
      __builtin_prefetch(dx + i, 1);
      const auto ps = vexp<C>(load<C>(x + i, part) - s.m) * s.first;
      store<C>(p + i, fresh<C>(ps, part), Whole{});
    };
    for (int64_t i = 0; i < whole; i += kLanes<C>) first_of(i, Whole{});
    if (whole < n) first_of(whole, rest);
    const C outer = static_cast<C>(sum_row<C>(padded, [=](int64_t i, auto part) {
      const auto ys = exp_of_difference<C>(load<C>(p + i, part) - s.first) * s.second;
      store<C>(y + i, ys, part);
      return load_within<C>(dy, i, n) * ys;
    }));
    // dp in the place of y. Stored, since an FMA of dp - inner would leave dp's rounding where p is
    // 1 and dx is 0.
    const C inner = static_cast<C>(sum_row<C>(padded, [=](int64_t i, auto part) {
      const auto dps = load<C>(y + i, part) * (load_within<C>(dy, i, n) - outer);
      store<C>(y + i, dps, part);
      return dps * load<C>(p + i, part);
    }));
    const auto write = [=](int64_t i, auto part) {
      store<C>(dx + i, load<C>(p + i, Whole{}) * (load<C>(y + i, Whole{}) - inner), part);
    };
    for (int64_t i = 0; i < whole; i += kLanes<C>) write(i, Whole{});
    if (whole < n) write(whole, rest);
  }
}

// The forward over columns. Reads x. Writes y and the statistics where their pointers are not null.
template <class X>
void columns(const softmax::ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const auto inverse = [](const Vector<double>& sum) { return 1 / sum; };
  softmax::each_strip<C, 1>(
      a.n, a.inner, first, last, [&](const auto& s, int64_t slice, int64_t column) {
        const auto m = s.read_max(0, softmax::x_at<X>(a, slice, column), a.x_step);
        const auto once = s.sum(
            [&](int64_t row, int k) {
              Vector<C>& e = s.at(0, row)[k];
              return e = vexp<C>(e - m.of[k]);
            },
            inverse);
        const auto twice = s.sum(
            [&](int64_t row, int k) {
              Vector<C>& e = s.at(0, row)[k];
              return e = vexp<C>(e * once.of[k] - once.of[k]);
            },
            inverse);
        s.write(softmax::y_at<X>(a, slice, column), a.inner,
                [&](int64_t row, int k) { return s.at(0, row)[k] * twice.of[k]; });
        if (!a.stats) return;
        Stats<C>* const stats = static_cast<Stats<C>*>(a.stats) + slice * a.inner + column;
        for (int64_t i = 0; i < s.columns(); ++i) {
          const int64_t k = i / kLanes<C>, lane = i % kLanes<C>;
          stats[i] = {m.of[k][lane], once.of[k][lane], twice.of[k][lane]};
        }
      });
}

// The gradient over columns. Reads dy and x. Writes dx.
template <class X>
void columns_gradient(const softmax::GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  softmax::each_strip<C, 3>(
      a.n, a.inner, first, last, [&](const auto& s, int64_t slice, int64_t column) {
        const Stats<C>* const stats =
            static_cast<const Stats<C>*>(a.stats) + slice * a.inner + column;
        auto m = s.zeros(), once = m, twice = m;
        for (int64_t i = 0; i < s.columns(); ++i) {
          const int64_t k = i / kLanes<C>, lane = i % kLanes<C>;
          m.of[k][lane] = stats[i].m;
          once.of[k][lane] = stats[i].first;
          twice.of[k][lane] = stats[i].second;
        }
        s.read(0, softmax::dy_at<X>(a, slice, column), a.dy_step, [](auto...) {});
        s.read(1, softmax::saved_at<X>(a, slice, column), a.saved_step, [](auto...) {});
        s.each([&](int64_t row, int k) {
          Vector<C>& p = s.at(1, row)[k];
          p = vexp<C>(p - m.of[k]) * once.of[k];
        });
        const auto outer = s.sum([&](int64_t row, int k) {
          const Vector<C> y = exp_of_difference<C>(s.at(1, row)[k] - once.of[k]) * twice.of[k];
          s.at(2, row)[k] = y;
          return s.at(0, row)[k] * y;
        });
        const auto inner = s.sum([&](int64_t row, int k) {
          const Vector<C> dp = s.at(2, row)[k] * (s.at(0, row)[k] - outer.of[k]);
          s.at(2, row)[k] = dp;
          return dp * s.at(1, row)[k];
        });
        s.write(softmax::dx_at<X>(a, slice, column), a.inner, [&](int64_t row, int k) {
          return s.at(1, row)[k] * (s.at(2, row)[k] - inner.of[k]);
        });
      });
}

constexpr int64_t kStats = 3;
// Forwards of more columns by tiles than a softmax's (AVX-512, one thread, by rows and by tiles,
// us: 1256 x 33 fp32 73, 38, x 64 73, 72, x 40 bf16 91, 40; 600 x 12 fp64 32, 13).
template <class X>
constexpr auto kForward =
    softmax::forward_rows<X, forward<X>, columns<X>, kStats, 2 * softmax::kFew<Compute<X>>>;
template <class X>
constexpr auto kGradient = softmax::gradient_rows<X, gradient<X>, columns_gradient<X>, kStats>;

constexpr softmax::Kernels kKernels = {
    {kForward<double>, kForward<float>, kForward<f16>, kForward<bf16>},
    {columns<double>, columns<float>, columns<f16>, columns<bf16>},
    {kGradient<double>, kGradient<float>, kGradient<f16>, kGradient<bf16>},
    {columns_gradient<double>, columns_gradient<float>, columns_gradient<f16>,
     columns_gradient<bf16>}};

}  // namespace
}  // namespace fuseline::double_softmax
