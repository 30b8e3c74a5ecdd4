// Sum and largest element of rows, forward and backward, for the instruction set the including file
// is built for. Everything is in an unnamed namespace: what the linker merges could carry wider
// instructions than the processor has.
#pragma once

#include "fuseline/row_sums.h"
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

template <class C>
inline C largest_lane(const Vector<C>& v) {
  C largest = v[0];
  for (int i = 1; i < kLanes<C>; ++i) largest = v[i] > largest ? v[i] : largest;
  return largest;
}

template <class C, class X>
bool has_nan(const X* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const C v = load_scalar<C>(x + i);
    if (v != v) return true;
  }
  return false;
}

template <class X>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    RowSum<C> sum;
    Vector<C> most = Vector<C>{} + load_scalar<C>(x);
    each_vector<C>(a.n, [&](int64_t i, auto part) {
      prefetch_ahead(x + i);
      const Vector<C> v = load<C>(x + i, part);
      sum.add(fresh<C>(v, part));
      const Vector<C> present = filled<C>(v, part);
      most = present > most ? present : most;
    });
    const double total = sum.total();
    C largest = largest_lane<C>(most);
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

// dx = dsum and, where x is the largest element, its part of damax.
template <class X>
void backward(const BackwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const C largest = load_scalar<C>(static_cast<const X*>(a.amax) + row);
    const C others = load_scalar<C>(static_cast<const X*>(a.dsum) + row);
    const C damax = load_scalar<C>(static_cast<const X*>(a.damax) + row);
    // Nothing equals a NaN: torch divides by the count of 0 everywhere.
    const C least = a.count[row] == 0 ? largest : others;
    const C most = others + damax / static_cast<C>(a.count[row]);
    each_vector<C>(a.n, [=](int64_t i, auto part) {
      const Vector<C> v = load<C>(x + i, part);
      store<C>(dx + i, v == largest ? Vector<C>{} + most : Vector<C>{} + least, part);
    });
  }
}

constexpr Kernels kKernels = {{forward<double>, forward<float>, forward<f16>, forward<bf16>},
                              {backward<double>, backward<float>, backward<f16>, backward<bf16>}};

}  // namespace
}  // namespace fuseline::horizontal_reduction_reduction
