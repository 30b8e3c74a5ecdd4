// The norm chain over rows, forward and backward, for the instruction set the including file is
// built for. Everything is in an unnamed namespace: what the linker merges could carry wider
// instructions than the processor has.
#pragma once

#include <cfloat>

#include "fuseline/cpu/row_sums.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::norm_chain {
namespace {

// Half types add in fp32 for a while, fp32 in fp64, fp64 with what it loses: the seventh power of a
// sum whose terms cancel would lose seven times as much.
template <class X, class Term>
long double sum_of(int64_t n, const Term& term) {
  if constexpr (sizeof(X) == 8) {
    return sum_compensated(n, [&](int64_t i, auto part) { return term(double{}, i, part); });
  } else {
    using C = std::conditional_t<sizeof(X) == 4, double, float>;
    return sum_row<C>(n, [&](int64_t i, auto part) { return term(C{}, i, part); });
  }
}

// The chain as it is written, for a row whose factor is out of fp64's range, be it of Inf or NaN.
template <class X>
__attribute__((noinline)) void plain_row(const X* x, X* y, int64_t n) {
  long double factor = 1;
  for (int step = 0; step < 3; ++step) {
    long double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += load<double>(x + i, Short{1})[0] * factor;
    factor *= sum;
  }
  for (int64_t i = 0; i < n; ++i) {
    const Vector<double> v = load<double>(x + i, Short{1});
    store<double>(y + i, Vector<double>{static_cast<double>(v[0] * factor)}, Short{1});
  }
}

// Whether C has v with all its bits.
template <class C>
bool fits(long double v) {
  const long double magnitude = v < 0 ? -v : v;
  if (sizeof(C) == 8) return v == 0 || (magnitude >= DBL_MIN && magnitude <= DBL_MAX);
  return v == 0 || (magnitude >= FLT_MIN && magnitude <= FLT_MAX);
}

template <class C, class X>
void scale_row(const X* x, X* y, int64_t n, C power) {
  each_vector<C>(
      n, [=](int64_t i, auto part) { store<C>(y + i, load<C>(x + i, part) * power, part); });
}

template <class X>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const y = static_cast<X*>(a.y) + row * a.n;
    const long double sum = sum_of<X>(
        a.n, [=](auto c, int64_t i, auto part) { return load<decltype(c)>(x + i, part); });
    if (a.sum) a.sum[row] = static_cast<double>(sum);
    const long double square = sum * sum, power = square * square * square * sum;
    if (fits<Compute<X>>(power)) {
      scale_row<Compute<X>>(x, y, a.n, power);
    } else if (fits<double>(power)) {
      scale_row<double>(x, y, a.n, power);
    } else {
      plain_row(x, y, a.n);
    }
  }
}

// dx = dy * power + shift.
template <class C, class X>
void gradient_row(const X* dy, X* dx, int64_t n, C power, C shift) {
  each_vector<C>(n, [=](int64_t i, auto part) {
    store<C>(dx + i, load<C>(dy + i, part) * power + shift, part);
  });
}

// The gradient of the chain as it is written, for such a row: from the last step back each gives
// g * sum + sum(g * what it multiplied).
template <class X>
__attribute__((noinline)) void plain_gradient(const X* dy, const X* x, X* dx, int64_t n) {
  long double sums[3], factors[3], added[3], factor = 1;
  for (int step = 0; step < 3; ++step) {
    sums[step] = 0, factors[step] = factor;
    for (int64_t i = 0; i < n; ++i) sums[step] += load<double>(x + i, Short{1})[0] * factor;
    factor *= sums[step];
  }
  const auto back_to = [&](int64_t i, int step) {
    long double g = load<double>(dy + i, Short{1})[0];
    for (int k = 2; k >= step; --k) g = g * sums[k] + added[k];
    return g;
  };
  for (int step = 2; step >= 0; --step) {
    long double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum += back_to(i, step + 1) * (load<double>(x + i, Short{1})[0] * factors[step]);
    }
    added[step] = sum;
  }
  for (int64_t i = 0; i < n; ++i) {
    store<double>(dx + i, Vector<double>{static_cast<double>(back_to(i, 0))}, Short{1});
  }
}

template <class X>
void backward(const BackwardArgs& a, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const X* const dy = static_cast<const X*>(a.dy) + row * a.dy_stride;
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const long double dot = sum_of<X>(a.n, [=](auto c, int64_t i, auto part) {
      return load<decltype(c)>(dy + i, part) * load<decltype(c)>(x + i, part);
    });
    const long double sum = a.sum[row], square = sum * sum, sixth = square * square * square;
    const long double power = sixth * sum, shift = 7 * sixth * dot;
    if (fits<Compute<X>>(power) && fits<Compute<X>>(shift)) {
      gradient_row<Compute<X>>(dy, dx, a.n, power, shift);
    } else if (fits<double>(power) && fits<double>(shift)) {
      gradient_row<double>(dy, dx, a.n, power, shift);
    } else {
      plain_gradient(dy, x, dx, a.n);
    }
  }
}

constexpr Kernels kKernels = {{forward<double>, forward<float>, forward<f16>, forward<bf16>},
                              {backward<double>, backward<float>, backward<f16>, backward<bf16>}};

}  // namespace
}  // namespace fuseline::norm_chain
