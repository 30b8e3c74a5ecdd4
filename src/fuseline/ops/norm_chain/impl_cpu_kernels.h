// The norm chain over rows, forward and backward, for the instruction set the including file is
// built for. Everything is in an unnamed namespace: what the linker merges could carry wider
// instructions than the processor has.
#pragma once

#include <cfloat>

#include "fuseline/cpu/row_tiles.h"
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
void forward_row(const ForwardArgs& a, int64_t row) {
  const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
  X* const y = static_cast<X*>(a.y) + row * a.n;
  const long double sum =
      sum_of<X>(a.n, [=](auto c, int64_t i, auto part) { return load<decltype(c)>(x + i, part); });
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

// What C has no bits of, or what fp64 may have lost, is left to a row alone.
inline bool fits_float(double sum, double v) {
  return sum == 0 || (__builtin_fabs(v) >= FLT_MIN && __builtin_fabs(v) <= FLT_MAX);
}

// The sums of the rows of a tile, in fp64, of term(column, row), which gives a vector.
template <class Term>
void sum_tile(int64_t count, int64_t n, double* sums, const Term& term) {
  for (int64_t r = 0; r < count; r += kLanes<double>) {
    Vector<double> sum = {};
    for (int64_t i = 0; i < n; ++i) sum += term(i, r);
    store<double>(sums + r, sum, Whole{});
  }
}

// Rows of few elements, by tiles; fp64 has no wider vectors for their sums.
template <class X>
void forward_tiles(const ForwardArgs& a, int64_t first, int64_t last) {
  RowTile<X, kFewOfNorms> x, y;
  double sums[kTileRows], powers[kTileRows];
  float factors[kTileRows] = {};
  each_tile(first, last, [&](int64_t row, int64_t count) {
    x.of(a.x, row, a.x_stride, count, a.n);
    sum_tile(count, a.n, sums,
             [&](int64_t i, int64_t r) { return load<double>(x.column(i) + r, Whole{}); });
    for (int64_t r = 0; r < count; ++r) {
      const double square = sums[r] * sums[r];
      powers[r] = square * square * square * sums[r];
      factors[r] = static_cast<float>(powers[r]);
    }
    for (int64_t i = 0; i < a.n; ++i) {
      for (int64_t r = 0; r < count; r += kLanes<float>) {
        const auto v = load<float>(x.column(i) + r, Whole{});
        store<float>(y.column(i) + r, v * load<float>(factors + r, Whole{}), Whole{});
      }
    }
    y.write(a.y, row, count, a.n);
    if (a.sum) std::memcpy(a.sum + row, sums, count * sizeof(double));
    for (int64_t r = 0; r < count; ++r) {
      if (!fits_float(sums[r], powers[r])) forward_row<X>(a, row + r);
    }
  });
}

template <class X>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  if constexpr (sizeof(X) < 8) {
    if (a.n <= kFewOfNorms) return forward_tiles<X>(a, first, last);
  }
  for (int64_t row = first; row < last; ++row) forward_row<X>(a, row);
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
void backward_row(const BackwardArgs& a, int64_t row) {
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

template <class X>
void backward_tiles(const BackwardArgs& a, int64_t first, int64_t last) {
  RowTile<X, kFewOfNorms> dy, x, dx;
  double dots[kTileRows], powers[kTileRows], shifts[kTileRows];
  float factors[kTileRows] = {}, added[kTileRows] = {};
  each_tile(first, last, [&](int64_t row, int64_t count) {
    dy.of(a.dy, row, a.dy_stride, count, a.n);
    x.of(a.x, row, a.x_stride, count, a.n);
    sum_tile(count, a.n, dots, [&](int64_t i, int64_t r) {
      return load<double>(dy.column(i) + r, Whole{}) * load<double>(x.column(i) + r, Whole{});
    });
    for (int64_t r = 0; r < count; ++r) {
      const double sum = a.sum[row + r], square = sum * sum, sixth = square * square * square;
      powers[r] = sixth * sum;
      shifts[r] = 7 * sixth * dots[r];
      factors[r] = static_cast<float>(powers[r]);
      added[r] = static_cast<float>(shifts[r]);
    }
    for (int64_t i = 0; i < a.n; ++i) {
      for (int64_t r = 0; r < count; r += kLanes<float>) {
        const auto g = load<float>(dy.column(i) + r, Whole{});
        const auto v = g * load<float>(factors + r, Whole{}) + load<float>(added + r, Whole{});
        store<float>(dx.column(i) + r, v, Whole{});
      }
    }
    dx.write(a.dx, row, count, a.n);
    for (int64_t r = 0; r < count; ++r) {
      const bool usual =
          fits_float(a.sum[row + r], powers[r]) && fits_float(a.sum[row + r] * dots[r], shifts[r]);
      if (!usual) backward_row<X>(a, row + r);
    }
  });
}

template <class X>
void backward(const BackwardArgs& a, int64_t first, int64_t last) {
  if constexpr (sizeof(X) < 8) {
    if (a.n <= kFewOfNorms) return backward_tiles<X>(a, first, last);
  }
  for (int64_t row = first; row < last; ++row) backward_row<X>(a, row);
}

constexpr Kernels kKernels = {{forward<double>, forward<float>, forward<f16>, forward<bf16>},
                              {backward<double>, backward<float>, backward<f16>, backward<bf16>}};

}  // namespace
}  // namespace fuseline::norm_chain
