// The pointwise chain, forward and backward, for the instruction set the including file is built
// for. Everything is in an unnamed namespace: what the linker merges could carry wider instructions
// than the processor has.
#pragma once

#include "fuseline/cpu/row_sums.h"
#include "fuseline/cpu/vectors/vector_math.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::pointwise_chain {
namespace {

// max(x * c, c) + x * c with c = cos(x), whose last sum cancels near x = -1 and so is rounded once.
template <class C>
inline Vector<C> chain(const Vector<C>& x) {
  const Vector<C> cos = vcos<C>(x), product = x * cos;
  return fused<C>(x, cos, product > cos ? product : cos);
}

// The derivative. Where the two are equal, at x = 1 alone, max gives each half.
template <class C>
inline Vector<C> slope(const Vector<C>& x) {
  const auto [sin, cos] = vsincos<C>(x);
  const Vector<C> product = x * cos, of_product = cos - x * sin;
  const Vector<C> unequal = product > cos ? of_product : -sin;
  return of_product + (x == 1 ? (of_product - sin) * C(0.5) : unequal);
}

template <class X>
void forward(const void* x, void* y, int64_t first, int64_t last) {
  using C = Compute<X>;
  each_vector<C>(first, first, last, [=](int64_t i, auto part) {
    store<C>(static_cast<X*>(y) + i, chain<C>(load<C>(static_cast<const X*>(x) + i, part)), part);
  });
}

template <class X>
void backward(const void* dy, const void* x, void* dx, int64_t first, int64_t last) {
  using C = Compute<X>;
  each_vector<C>(first, first, last, [=](int64_t i, auto part) {
    const auto g = load<C>(static_cast<const X*>(dy) + i, part);
    const auto v = load<C>(static_cast<const X*>(x) + i, part);
    store<C>(static_cast<X*>(dx) + i, g * slope<C>(v), part);
  });
}

constexpr Kernels kKernels = {{forward<double>, forward<float>, forward<f16>, forward<bf16>},
                              {backward<double>, backward<float>, backward<f16>, backward<bf16>}};

}  // namespace
}  // namespace fuseline::pointwise_chain
