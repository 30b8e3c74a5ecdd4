// SiLU as a gate, for the instruction set the including file is built for. Everything is in an
// unnamed namespace: what the linker merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/gated/gated_rows_kernels.h"
#include "fuseline/cpu/vectors/vector_math.h"

namespace fuseline::swiglu {
namespace {

// a * s with s = 1 / (1 + e^-a), of e^-|a|, which never overflows; 1 - s as a share of its own,
// which has digits where s is near 1.
struct Silu {
  template <class X>
  static gated::Slope<Compute<X>> with_slope(const Vector<Compute<X>>& a) {
    using C = Compute<X>;
    const Vector<C> e = vexp<C>(a < 0 ? a : -a), large = 1 / (1 + e), small = e * large;
    const Vector<C> share = a < 0 ? small : large, other = a < 0 ? large : small;
    return {a * share, share * (1 + a * other)};
  }

  template <class X>
  static Vector<Compute<X>> of(const Vector<Compute<X>>& a) {
    return with_slope<X>(a).value;
  }
};

constexpr gated::Kernels kKernels = gated::kKernelsOf<Silu>;

}  // namespace
}  // namespace fuseline::swiglu
