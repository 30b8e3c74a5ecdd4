// GELU as a gate, for the instruction set the including file is built for. Everything is in an
// unnamed namespace: what the linker merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/gated/gated_rows_kernels.h"
#include "fuseline/cpu/vectors/gelu.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::geglu {
namespace {

// Gradients are judged by the largest one, and half types keep no more than fp32 leaves: both do
// without an exponent in two parts.
template <class F>
struct Gelu {
  template <class X>
  static gated::Slope<Compute<X>> with_slope(const Vector<Compute<X>>& a) {
    using C = Compute<X>;
    const auto gate = gelu::gate_at<F, false, C>({a, Vector<C>{}});
    return {a * gate.share, gate.share + a * gate.slope};
  }

  template <class X>
  static Vector<Compute<X>> of(const Vector<Compute<X>>& a) {
    using C = Compute<X>;
    return a * gelu::gate_at<F, (sizeof(X) > 2), C>({a, Vector<C>{}}).share;
  }
};

constexpr Kernels kKernels = {
    {gated::kKernelsOf<Gelu<gelu::Tanh>>, gated::kKernelsOf<Gelu<gelu::Erf>>}};

}  // namespace
}  // namespace fuseline::geglu
