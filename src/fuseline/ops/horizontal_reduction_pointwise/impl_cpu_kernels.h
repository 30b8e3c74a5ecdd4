// Sum and cosine over rows and columns, forward and backward, for the instruction set the including
// file is built for. Everything is in an unnamed namespace: what the linker merges could carry
// wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_tiles.h"
#include "fuseline/cpu/softmax_columns_kernels.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::horizontal_reduction_pointwise {
namespace {

template <class X>
inline Vector<Compute<X>> cos_of(const Vector<Compute<X>>& v) {
  return vcos<Compute<X>, (sizeof(X) > 2)>(v);
}
template <class X>
inline Vector<Compute<X>> sin_of(const Vector<Compute<X>>& v) {
  return vsin<Compute<X>, (sizeof(X) > 2)>(v);
}

// Rows of no more elements than a vector has: cosines are taken of neighbours in memory, whatever
// their rows, where these lie one behind the other.
template <class X>
void short_rows(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const X* const x = static_cast<const X*>(a.x) + first * a.x_stride;
  X* const cos = static_cast<X*>(a.cos) + first * a.n;
  const bool flat = a.x_stride == a.n;
  for (int64_t row = 0; row < (flat ? 1 : last - first); ++row) {
    each_vector<C>(flat ? (last - first) * a.n : a.n, [=](int64_t i, auto part) {
      store<C>(cos + row * a.n + i, cos_of<X>(load<C>(x + row * a.x_stride + i, part)), part);
    });
  }
  each_vector_of_rows<X, kLanes<C>>(a.x, a.x_stride, a.n, first, last,
                                    [&](int64_t row, int64_t count, const auto& at) {
                                      RowSum<C> sum;
                                      for (int64_t i = 0; i < a.n; ++i) sum.add(at(i));
                                      store_totals<C>(sum, static_cast<X*>(a.sum) + row, count);
                                    });
}

template <class X>
void rows(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  if (a.n <= kLanes<C>) return short_rows<X>(a, first, last);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const cos = static_cast<X*>(a.cos) + row * a.n;
    RowSum<C> sum;
    each_vector<C>(a.n, [&](int64_t i, auto part) {
      prefetch_ahead(x + i);
      const Vector<C> v = load<C>(x + i, part);
      sum.add(fresh<C>(v, part));
      store<C>(cos + i, cos_of<X>(v), part);
    });
    store_scalar(static_cast<X*>(a.sum) + row, sum.total());
  }
}

// dx = dsum - dcos * sin(x), of short rows one behind the other: sines of neighbours in memory,
// whatever their rows, then row by row.
template <class X>
void flat_rows_gradient(const BackwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  constexpr int64_t kBlock = 512;
  C slopes[kBlock];
  const Short all{static_cast<int>(a.n)};
  for (int64_t row = first; row < last; row += kBlock / a.n) {
    const int64_t left = last - row, rows = left < kBlock / a.n ? left : kBlock / a.n;
    const X* const x = static_cast<const X*>(a.x) + row * a.n;
    each_vector<C>(rows * a.n, [&](int64_t i, auto part) {
      store<C>(slopes + i, sin_of<X>(load<C>(x + i, part)), part);
    });
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t at = (row + r) * a.n;
      const C dsum = load_scalar<C>(static_cast<const X*>(a.dsum) + row + r);
      const Vector<C> slope = load<C>(slopes + r * a.n, all);
      store<C>(static_cast<X*>(a.dx) + at,
               dsum - load<C>(static_cast<const X*>(a.dcos) + at, all) * slope, all);
    }
  }
}

template <class X>
void rows_gradient(const BackwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  if (a.n > 0 && a.n <= kLanes<C> && a.x_stride == a.n && a.dcos_stride == a.n) {
    return flat_rows_gradient<X>(a, first, last);
  }
  for (int64_t row = first; row < last; ++row) {
    const X* const dcos = static_cast<const X*>(a.dcos) + row * a.dcos_stride;
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const C dsum = load_scalar<C>(static_cast<const X*>(a.dsum) + row);
    each_vector<C>(a.n, [=](int64_t i, auto part) {
      const Vector<C> slope = sin_of<X>(load<C>(x + i, part));
      store<C>(dx + i, dsum - load<C>(dcos + i, part) * slope, part);
    });
  }
}

// Whether a slice has fewer columns than a vector has lanes, and no gaps: sines and cosines are
// then taken of neighbours in memory, whatever their columns.
template <class C>
inline bool is_flat(int64_t inner, int64_t step) {
  return inner < kLanes<C> && step == inner;
}

// The same over columns.
template <class X>
void columns(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const auto strip = [&](const auto& s, int64_t slice, int64_t column) {
    const X* const x = static_cast<const X*>(a.x) + slice * a.x_stride + column;
    X* const cos = static_cast<X*>(a.cos) + slice * a.n * a.inner + column;
    RowSum<C> sums[s.kVectors];
    if (is_flat<C>(a.inner, a.x_step)) {
      s.read(0, x, a.x_step, [&](int k, const Vector<C>& v) { sums[k].add(v); });
      each_vector<C>(a.n * a.inner, [=](int64_t i, auto part) {
        store<C>(cos + i, cos_of<X>(load<C>(x + i, part)), part);
      });
    } else {
      s.write(cos, a.inner, [&](int64_t row, int k) {
        const Vector<C> v = s.vector(x, a.x_step, row, k);
        sums[k].add(v);
        return cos_of<X>(v);
      });
    }
    double totals[s.kWidth];
    for (int k = 0; k < s.kVectors; ++k) sums[k].totals(totals + k * kLanes<C>);
    X* const sum = static_cast<X*>(a.sum) + slice * a.inner + column;
    each_vector<double>(s.columns(), [=, &totals](int64_t i, auto part) {
      store<double>(sum + i, load<double>(totals + i, part), part);
    });
  };
  softmax::each_strip<C, 0>(a.n, a.inner, first, last, strip);
}

// dx of `count` elements one after the other, of `inner` columns.
template <class X>
void flat_gradient(const X* dsum, const X* dcos, const X* x, X* dx, int64_t count, int64_t inner) {
  using C = Compute<X>;
  Vector<C> turned[kLanes<C>];  // dsum of a vector that begins in each column
  for (int64_t i = 0; i < inner; ++i) {
    for (int64_t lane = 0; lane < kLanes<C>; ++lane) {
      turned[i][lane] = load_scalar<C>(dsum + (i + lane) % inner);
    }
  }
  each_vector<C>(count, [&](int64_t i, auto part) {
    const Vector<C> slope = sin_of<X>(load<C>(x + i, part));
    store<C>(dx + i, turned[i % inner] - load<C>(dcos + i, part) * slope, part);
  });
}

template <class X>
void columns_gradient(const BackwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const bool flat = is_flat<C>(a.inner, a.x_step) && a.dcos_step == a.inner && a.n >= kLanes<C>;
  const auto strip = [&](const auto& s, int64_t slice, int64_t column) {
    const X* const dsum = static_cast<const X*>(a.dsum) + slice * a.inner + column;
    const X* const dcos = static_cast<const X*>(a.dcos) + slice * a.dcos_stride + column;
    const X* const x = static_cast<const X*>(a.x) + slice * a.x_stride + column;
    X* const dx = static_cast<X*>(a.dx) + slice * a.n * a.inner + column;
    if (flat) return flat_gradient(dsum, dcos, x, dx, a.n * a.inner, a.inner);
    const auto of_sum = s.beside(dsum);
    s.write(dx, a.inner, [&](int64_t row, int k) {
      const Vector<C> slope = sin_of<X>(s.vector(x, a.x_step, row, k));
      return of_sum.of[k] - s.vector(dcos, a.dcos_step, row, k) * slope;
    });
  };
  softmax::each_strip<C, 0>(a.n, a.inner, first, last, strip);
}

constexpr Kernels kKernels = {
    {rows<double>, rows<float>, rows<f16>, rows<bf16>},
    {columns<double>, columns<float>, columns<f16>, columns<bf16>},
    {rows_gradient<double>, rows_gradient<float>, rows_gradient<f16>, rows_gradient<bf16>},
    {columns_gradient<double>, columns_gradient<float>, columns_gradient<f16>,
     columns_gradient<bf16>}};

}  // namespace
}  // namespace fuseline::horizontal_reduction_pointwise
