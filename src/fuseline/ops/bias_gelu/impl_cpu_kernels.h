// GELU of x + bias over rows, forward and backward, for the instruction set the including file is
// built for. Everything is in an unnamed namespace: what the linker merges could carry wider
// instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_sums.h"
#include "fuseline/cpu/vectors/gelu.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::bias_gelu {
namespace {

using namespace gelu;

// Half types keep no more than fp32 leaves.
template <class X>
constexpr bool kExact = sizeof(X) > 2;

template <class F, class X>
void forward(const ForwardArgs& args, int64_t first, int64_t last) {
  using C = Compute<X>;
  const X* const bias = static_cast<const X*>(args.bias);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(args.x) + row * args.x_stride;
    X* const y = static_cast<X*>(args.y) + row * args.n;
    each_vector<C>(args.n, [=](int64_t i, auto part) {
      Vector<C> h;
      const Vector<C> v = load<C>(x + i, part);
      const Gate<C> gate = gate_of<F, kExact<X>, C>(v, load<C>(bias + i, part), h);
      store<C>(y + i, h * gate.share, part);
    });
  }
}

// dx = dy * (share + h * slope), and its sums over rows: of four in C, of such sums in fp64.
template <class F, class X>
void backward(const BackwardArgs& args, int64_t first, int64_t last, double* dbias) {
  using C = Compute<X>;
  constexpr int64_t kGroup = 4;
  const X* const bias = static_cast<const X*>(args.bias);
  const int64_t n = args.n;
  if (dbias) std::memset(dbias, 0, n * sizeof(double));
  for (int64_t row = first; row < last; row += kGroup) {
    const X* const dy = static_cast<const X*>(args.dy) + row * args.dy_stride;
    const X* const x = static_cast<const X*>(args.x) + row * args.x_stride;
    X* const dx = args.dx ? static_cast<X*>(args.dx) + row * n : nullptr;
    const int64_t count = last - row < kGroup ? last - row : kGroup;
    each_vector<C>(n, [=](int64_t i, auto part) {
      const Vector<C> b = load<C>(bias + i, part);
      Vector<C> sum = {};
      for (int64_t r = 0; r < count; ++r) {
        Vector<C> h;
        const Vector<C> v = load<C>(x + r * args.x_stride + i, part);
        const Gate<C> gate = gate_of<F, false, C>(v, b, h);
        const Vector<C> g =
            load<C>(dy + r * args.dy_stride + i, part) * (gate.share + h * gate.slope);
        if (dx) store<C>(dx + r * n + i, g, part);
        sum += g;
      }
      if (dbias) add_to<C>(dbias + i, fresh<C>(sum, part), part);
    });
  }
}

// The same where a row has one bias.
template <class F, class X>
void forward_lines(const ForwardArgs& args, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(args.x) + row * args.x_stride;
    X* const y = static_cast<X*>(args.y) + row * args.n;
    const auto bias = load_scalar<C>(static_cast<const X*>(args.bias) + row % args.biases);
    each_vector<C>(args.n, [=](int64_t i, auto part) {
      Vector<C> h;
      const Vector<C> v = load<C>(x + i, part);
      const Gate<C> gate = gate_of<F, kExact<X>, C>(v, Vector<C>{} + bias, h);
      store<C>(y + i, h * gate.share, part);
    });
  }
}

template <class F, class X>
void backward_lines(const BackwardArgs& args, int64_t first, int64_t last, double* dbias) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const dy = static_cast<const X*>(args.dy) + row * args.dy_stride;
    const X* const x = static_cast<const X*>(args.x) + row * args.x_stride;
    X* const dx = args.dx ? static_cast<X*>(args.dx) + row * args.n : nullptr;
    const auto bias = load_scalar<C>(static_cast<const X*>(args.bias) + row % args.biases);
    RowSum<C> sum;
    each_vector<C>(args.n, [&](int64_t i, auto part) {
      Vector<C> h;
      const Vector<C> v = load<C>(x + i, part);
      const Gate<C> gate = gate_of<F, false, C>(v, Vector<C>{} + bias, h);
      const Vector<C> g = load<C>(dy + i, part) * (gate.share + h * gate.slope);
      if (dx) store<C>(dx + i, g, part);
      sum.add(fresh<C>(g, part));
    });
    if (dbias) dbias[row] = sum.total();
  }
}

constexpr Kernels kKernels = {
    {{forward<Tanh, double>, forward<Tanh, float>, forward<Tanh, f16>, forward<Tanh, bf16>},
     {forward<Erf, double>, forward<Erf, float>, forward<Erf, f16>, forward<Erf, bf16>}},
    {{backward<Tanh, double>, backward<Tanh, float>, backward<Tanh, f16>, backward<Tanh, bf16>},
     {backward<Erf, double>, backward<Erf, float>, backward<Erf, f16>, backward<Erf, bf16>}},
    {{forward_lines<Tanh, double>, forward_lines<Tanh, float>, forward_lines<Tanh, f16>,
      forward_lines<Tanh, bf16>},
     {forward_lines<Erf, double>, forward_lines<Erf, float>, forward_lines<Erf, f16>,
      forward_lines<Erf, bf16>}},
    {{backward_lines<Tanh, double>, backward_lines<Tanh, float>, backward_lines<Tanh, f16>,
      backward_lines<Tanh, bf16>},
     {backward_lines<Erf, double>, backward_lines<Erf, float>, backward_lines<Erf, f16>,
      backward_lines<Erf, bf16>}},
    {sum_chunks<double>, sum_chunks<float>, sum_chunks<f16>, sum_chunks<bf16>}};

}  // namespace
}  // namespace fuseline::bias_gelu
