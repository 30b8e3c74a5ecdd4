// The cross-entropy of rows and its gradient, for the instruction set the including file is built
// for. Everything is in an unnamed namespace: what the linker merges could carry wider instructions
// than the processor has.
#pragma once

#include "fuseline/cpu/softmax_rows_kernels.h"
#include "impl_cpu_dispatch.h"
#include "impl_cpu_tanh.h"

namespace fuseline::cross_entropy {
namespace {

// What the logits become first: softcap * tanh(x / softcap), or what they are.
template <class C>
struct Softcap {
  C most, inverse;

  explicit Softcap(double softcap)
      : most(static_cast<C>(softcap)), inverse(static_cast<C>(softcap > 0 ? 1 / softcap : 0)) {}
  explicit operator bool() const { return most != 0; }
  Vector<C> share(const Vector<C>& x) const { return vtanh<C>(x * inverse); }
};

inline double log_of(double sum) { return vlog(Vector<double>{} + sum)[0]; }

// One row of z, of which `m` is the largest and `log` the logarithm of the sum of exp(z - m).
template <class C, class Z>
double loss_of(const Problem& p, const Z* z, int64_t target, C m, double log) {
  const C* const weight = static_cast<const C*>(p.weight);
  const double own = static_cast<double>(m - load_scalar<C>(z + target)) + log;
  double loss = (1 - p.smoothing) * (weight ? weight[target] : C(1)) * own;
  if (p.smoothing > 0) {
    const double below = sum_row<C>(p.n, [=](int64_t i, auto part) {
      const Vector<C> v = m - load<C>(z + i, part);
      return weight ? v * load<C>(weight + i, part) : v;
    });
    loss += p.smoothing / static_cast<double>(p.n) * (below + p.weights * log);
  }
  const double lse = m + log;
  return p.z_loss > 0 ? loss + p.z_loss * lse * lse : loss;
}

template <class C, class Z>
void forward_row(const Problem& p, const Z* z, const Z* next, int64_t target, C* loss, C* stats) {
  const C m = softmax::max_row<C>(z, p.n);
  const double log = log_of(softmax::sum_exp<C>(z, m, p.n, next, next, [](auto...) {}));
  *loss = static_cast<C>(loss_of<C>(p, z, target, m, log));
  stats[0] = m;
  stats[1] = static_cast<C>(log);
}

// Reads the logits (twice, and once more of a softcap or smoothed labels). A target that is ignored
// costs nothing.
template <class X>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const Problem& p = a.of;
  const Softcap<C> cap(p.softcap);
  const softmax::Scratch<C> scratch(1, cap ? p.n : 0);
  C* const z = scratch.row(0);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(p.logits) + row * p.stride;
    C* const loss = static_cast<C*>(a.losses) + row;
    C* const stats = static_cast<C*>(p.stats) + 2 * row;
    const int64_t target = p.target[row];
    if (target == p.ignore_index) {
      *loss = stats[0] = stats[1] = 0;
    } else if (cap) {
      each_vector<C>(p.n, [=](int64_t i, auto part) {
        store<C>(z + i, cap.most * cap.share(load<C>(x + i, part)), part);
      });
      forward_row<C>(p, z, z, target, loss, stats);
    } else {
      forward_row<C>(p, x, softmax::next_row(x, p.stride, p.n), target, loss, stats);
    }
  }
}

// Of one row: dz = own * (e - hit) + each * (e * weights - weight) + of_z * e, where e is
// exp(z - max - log), and hit 1 at the target: so what cancels where e is 1 leaves nothing.
template <class C>
struct Slopes {
  C own, each, weights, of_z;

  Slopes(const Problem& p, int64_t target, const C* stats, double upstream)
      : each(static_cast<C>(upstream * p.smoothing / static_cast<double>(p.n))),
        weights(static_cast<C>(p.weights)) {
    const C* const weight = static_cast<const C*>(p.weight);
    const double lse = static_cast<double>(stats[0]) + stats[1];
    const double direct = upstream * (1 - p.smoothing) * (weight ? weight[target] : C(1));
    own = static_cast<C>(direct);
    of_z = static_cast<C>(2 * upstream * p.z_loss * lse);
  }
};

// Reads the logits. Writes dlogits.
template <class X>
void gradient(const GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const Problem& p = a.of;
  const Softcap<C> cap(p.softcap);
  const C* const weight = static_cast<const C*>(p.weight);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(p.logits) + row * p.stride;
    X* const dx = static_cast<X*>(a.dlogits) + row * p.n;
    const int64_t target = p.target[row];
    if (target == p.ignore_index) {
      __builtin_memset(dx, 0, p.n * sizeof(X));
      continue;
    }
    const C* const stats = static_cast<const C*>(p.stats) + 2 * row;
    const double upstream = static_cast<const C*>(a.dloss)[row * a.step] / a.total;
    const Slopes<C> of(p, target, stats, upstream);
    const auto slope = [=](int64_t i, C hit, auto part) {
      Vector<C> z = load<C>(x + i, part), share = {};
      if (cap) share = cap.share(z), z = cap.most * share;
      const Vector<C> e = vexp<C>((z - stats[0]) - stats[1]);
      Vector<C> dz = (e - hit) * of.own + e * of.of_z;
      if (p.smoothing > 0) {
        const Vector<C> w = weight ? load<C>(weight + i, part) : Vector<C>{} + 1;
        dz = fused<C>(fused<C>(e, Vector<C>{} + of.weights, -w), Vector<C>{} + of.each, dz);
      }
      return dz * (1 - share) * (1 + share);
    };
    each_vector<C>(p.n,
                   [=](int64_t i, auto part) { store<C>(dx + i, slope(i, C(0), part), part); });
    store<C>(dx + target, slope(target, C(1), Short{1}), Short{1});
  }
}

constexpr Kernels kKernels = {{forward<double>, forward<float>, forward<f16>, forward<bf16>},
                              {gradient<double>, gradient<float>, gradient<f16>, gradient<bf16>}};

}  // namespace
}  // namespace fuseline::cross_entropy
