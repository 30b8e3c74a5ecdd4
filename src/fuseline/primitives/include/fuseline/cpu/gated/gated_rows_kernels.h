// Gated operators over rows, y = f(a) * b, for the instruction set the including file is built for.
// Everything is in an unnamed namespace: what the linker merges could carry wider instructions than
// the processor has.
//
// A gate is a type G: of<X>(a) -> f(a), and with_slope<X>(a) -> f(a) and its derivative, in
// Compute<X>.
#pragma once

#include "fuseline/cpu/gated/gated_rows.h"
#include "fuseline/cpu/row_sums.h"

namespace fuseline::gated {
namespace {

template <class C>
struct Slope {
  Vector<C> value, slope;
};

// Row r of an input or a result.
template <class X>
inline const X* row_of(const Rows& rows, int k, int64_t r) {
  return static_cast<const X*>(rows.in[k]) + r * rows.strides[k];
}
template <class X>
inline X* result_of(const Rows& rows, int k, int64_t r) {
  return static_cast<X*>(rows.out[k]) + r * rows.out_stride;
}

template <class G, class X>
void forward(const Rows& rows, const Part& part) {
  using C = Compute<X>;
  for (int64_t r = part.row; r < part.end; ++r) {
    const X *const a = row_of<X>(rows, 0, r), *const b = row_of<X>(rows, 1, r);
    X* const y = result_of<X>(rows, 0, r);
    each_vector<C>(part.first, part.first, part.last, [=](int64_t i, auto piece) {
      store<C>(y + i, G::template of<X>(load<C>(a + i, piece)) * load<C>(b + i, piece), piece);
    });
  }
}

template <class G, class X>
void backward(const Rows& rows, const Part& part) {
  using C = Compute<X>;
  for (int64_t r = part.row; r < part.end; ++r) {
    const X *const a = row_of<X>(rows, 0, r), *const b = row_of<X>(rows, 1, r);
    const X* const dy = row_of<X>(rows, 2, r);
    X *const da = result_of<X>(rows, 0, r), *const db = result_of<X>(rows, 1, r);
    each_vector<C>(part.first, part.first, part.last, [=](int64_t i, auto piece) {
      const Slope<C> gate = G::template with_slope<X>(load<C>(a + i, piece));
      const Vector<C> g = load<C>(dy + i, piece);
      store<C>(da + i, g * load<C>(b + i, piece) * gate.slope, piece);
      store<C>(db + i, g * gate.value, piece);
    });
  }
}

template <class G>
constexpr Kernels kKernelsOf = {
    {forward<G, double>, forward<G, float>, forward<G, f16>, forward<G, bf16>},
    {backward<G, double>, backward<G, float>, backward<G, f16>, backward<G, bf16>}};

}  // namespace
}  // namespace fuseline::gated
