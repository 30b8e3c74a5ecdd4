// Sum and cosine over rows, forward and backward, for the instruction set the including file is
// built for. Everything is in an unnamed namespace: what the linker merges could carry wider
// instructions than the processor has.
#pragma once

#include "fuseline/row_sums.h"
#include "fuseline/vector_math.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::horizontal_reduction_pointwise {
namespace {

template <class X>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const cos = static_cast<X*>(a.cos) + row * a.n;
    RowSum<C> sum;
    each_vector<C>(a.n, [&](int64_t i, auto part) {
      prefetch_ahead(x + i);
      const Vector<C> v = load<C>(x + i, part);
      sum.add(fresh<C>(v, part));
      store<C>(cos + i, vcos<C>(v), part);
    });
    store_scalar(static_cast<X*>(a.sum) + row, sum.total());
  }
}

// dx = dsum - dcos * sin(x).
template <class X>
void backward(const BackwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const dcos = static_cast<const X*>(a.dcos) + row * a.dcos_stride;
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const C dsum = load_scalar<C>(static_cast<const X*>(a.dsum) + row);
    each_vector<C>(a.n, [=](int64_t i, auto part) {
      const Vector<C> slope = vsin<C>(load<C>(x + i, part));
      store<C>(dx + i, dsum - load<C>(dcos + i, part) * slope, part);
    });
  }
}

constexpr Kernels kKernels = {{forward<double>, forward<float>, forward<f16>, forward<bf16>},
                              {backward<double>, backward<float>, backward<f16>, backward<bf16>}};

}  // namespace
}  // namespace fuseline::horizontal_reduction_pointwise
