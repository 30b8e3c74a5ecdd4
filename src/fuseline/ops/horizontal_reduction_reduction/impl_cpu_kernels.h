// Sum and largest element of rows and columns, forward and backward, for the instruction set the
// including file is built for. Everything is in an unnamed namespace: what the linker merges could
// carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_tiles.h"
#include "fuseline/cpu/softmax_columns_kernels.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::horizontal_reduction_reduction {
namespace {

// v with other elements of the row where a Short one has none.
template <class C>
inline Vector<C> filled(const Vector<C>& v, Whole) {
  return v;
}
template <class C>
inline Vector<C> filled(const Vector<C>& v, Short part) {
  return lane_numbers<C>() < part.columns ? v : Vector<C>{} + v[0];
}

template <class C, class X>
bool has_nan(const X* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const C v = load_scalar<C>(x + i);
    if (v != v) return true;
  }
  return false;
}

constexpr int64_t kFew = 16;

// Rows of at most kFew elements, as many at once as a vector has lanes.
template <class X>
void few_columns(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const auto body = [&](int64_t row, int64_t count, const auto& at) {
    RowSum<C> sum, alike;
    Vector<C> most = at(0);
    for (int64_t i = 0; i < a.n; ++i) {
      const Vector<C> v = at(i);
      sum.add(v);
      most = (v > most) | (v != v) ? v : most;  // a NaN stays
    }
    store_totals<C>(sum, static_cast<X*>(a.sum) + row, count);
    each_vector<C>(count, [&](int64_t i, auto part) {
      store<C>(static_cast<X*>(a.amax) + row + i,
               load<C>(reinterpret_cast<const C*>(&most) + i, part), part);
    });
    if (!a.count) return;
    for (int64_t i = 0; i < a.n; ++i) alike.add(at(i) == most ? Vector<C>{} + 1 : Vector<C>{});
    store_totals<C>(alike, a.count + row, count);
  };
  each_vector_of_rows<X, kFew>(a.x, a.x_stride, a.n, first, last, body);
}

template <class X>
void rows(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  if (a.n <= kFew) return few_columns<X>(a, first, last);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    RowSum<C> sum;
    Vector<C> most = Vector<C>{} + load_scalar<C>(x);
    each_vector<C>(a.n, [&](int64_t i, auto part) {
      prefetch_ahead(x + i);
      const Vector<C> v = load<C>(x + i, part);
      sum.add(fresh<C>(v, part));
      const Vector<C> present = filled<C>(v, part);
      most = larger<C>(present, most);
    });
    const double total = sum.total();
    C largest = softmax::largest_lane<C, kLanes<C>>(most);
    // A NaN, which these comparisons pass by, shows in the sum.
    if (total != total && has_nan<C>(x, a.n)) largest = static_cast<C>(total);
    store_scalar(static_cast<X*>(a.sum) + row, total);
    store_scalar(static_cast<X*>(a.amax) + row, static_cast<double>(largest));
    if (!a.count) continue;
    a.count[row] = sum_row<C>(a.n, [=](int64_t i, auto part) {
      return load<C>(x + i, part) == largest ? Vector<C>{} + 1 : Vector<C>{};
    });
  }
}

// The same of columns.
template <class X>
void columns(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  softmax::each_strip<C, 0>(
      a.n, a.inner, first, last, [&](const auto& s, int64_t slice, int64_t column) {
        const X* const x = static_cast<const X*>(a.x) + slice * a.x_stride + column;
        RowSum<C> sums[s.kVectors], counts[s.kVectors];
        auto most = s.beside(x);
        s.read(0, x, a.x_step, [&](int k, const Vector<C>& v) {
          sums[k].add(v);
          most.of[k] = (v > most.of[k]) | (v != v) ? v : most.of[k];  // a NaN stays
        });
        double totals[s.kWidth], alike[s.kWidth];
        for (int k = 0; k < s.kVectors; ++k) sums[k].totals(totals + k * kLanes<C>);
        const int64_t to = slice * a.inner + column;
        each_vector<double>(s.columns(), [&](int64_t i, auto part) {
          store<double>(static_cast<X*>(a.sum) + to + i, load<double>(totals + i, part), part);
        });
        C largest[s.kWidth];
        std::memcpy(largest, &most, sizeof(largest));
        each_vector<C>(s.columns(), [&](int64_t i, auto part) {
          store<C>(static_cast<X*>(a.amax) + to + i, load<C>(largest + i, part), part);
        });
        if (!a.count) return;
        s.read(0, x, a.x_step, [&](int k, const Vector<C>& v) {
          counts[k].add(v == most.of[k] ? Vector<C>{} + 1 : Vector<C>{});
        });
        for (int k = 0; k < s.kVectors; ++k) counts[k].totals(alike + k * kLanes<C>);
        for (int64_t i = 0; i < s.columns(); ++i) a.count[to + i] = alike[i];
      });
}

// dx is `most` where x is the largest element, its part of damax beside dsum; `least` elsewhere.
template <class C>
struct Shares {
  C largest, most, least;

  template <class X>
  static Shares at(const BackwardArgs& a, int64_t row, const X*) {
    const C largest = load_scalar<C>(static_cast<const X*>(a.amax) + row);
    const C dsum = load_scalar<C>(static_cast<const X*>(a.dsum) + row);
    const C damax = load_scalar<C>(static_cast<const X*>(a.damax) + row);
    // Nothing equals a NaN: torch divides by the count of 0 everywhere.
    return {largest, dsum + damax / static_cast<C>(a.count[row]),
            a.count[row] == 0 ? largest : dsum};
  }
};

template <class X>
void rows_gradient(const BackwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const auto shares = Shares<C>::at(a, row, x);
    each_vector<C>(a.n, [=](int64_t i, auto part) {
      const Vector<C> v = load<C>(x + i, part), at = Vector<C>{};
      store<C>(dx + i, v == shares.largest ? at + shares.most : at + shares.least, part);
    });
  }
}

template <class X>
void columns_gradient(const BackwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  softmax::each_strip<C, 0>(
      a.n, a.inner, first, last, [&](const auto& s, int64_t slice, int64_t column) {
        const X* const x = static_cast<const X*>(a.x) + slice * a.x_stride + column;
        auto largest = s.zeros(), most = s.zeros(), least = s.zeros();
        for (int64_t i = 0; i < s.columns(); ++i) {
          const auto shares = Shares<C>::at(a, slice * a.inner + column + i, x);
          const int64_t k = i / kLanes<C>, lane = i % kLanes<C>;
          largest.of[k][lane] = shares.largest;
          most.of[k][lane] = shares.most;
          least.of[k][lane] = shares.least;
        }
        s.write(static_cast<X*>(a.dx) + slice * a.n * a.inner + column, a.inner,
                [&](int64_t row, int k) {
                  const Vector<C> v = s.vector(x, a.x_step, row, k);
                  return v == largest.of[k] ? most.of[k] : least.of[k];
                });
      });
}

constexpr Kernels kKernels = {
    {rows<double>, rows<float>, rows<f16>, rows<bf16>},
    {columns<double>, columns<float>, columns<f16>, columns<bf16>},
    {rows_gradient<double>, rows_gradient<float>, rows_gradient<f16>, rows_gradient<bf16>},
    {columns_gradient<double>, columns_gradient<float>, columns_gradient<f16>,
     columns_gradient<bf16>}};

}  // namespace
}  // namespace fuseline::horizontal_reduction_reduction
