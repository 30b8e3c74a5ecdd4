// The cross-entropy of rows and its gradient, for the instruction set the including file is built
// for. Everything is in an unnamed namespace: what the linker merges could carry wider instructions
// than the processor has.
#pragma once

#include "fuseline/cpu/softmax_columns_kernels.h"
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
  Vector<C> of(const Vector<C>& x) const { return most != 0 ? most * share(x) : x; }
};

inline double log_of(double sum) { return vlog(Vector<double>{} + sum)[0]; }

// The loss of a row of z, of which `m` is the largest, `log` the logarithm of the sum of
// exp(z - m), `target` the class's own, and `below` the sum of weight * (m - z), for labels that
// are smoothed.
template <class C>
double loss_of(const Problem& p, int64_t target, C z, C m, double log, double below) {
  const C* const weight = static_cast<const C*>(p.weight);
  const double own = static_cast<double>(m - z) + log, lse = m + log;
  double loss = (1 - p.smoothing) * (weight ? weight[target] : C(1)) * own;
  if (p.smoothing > 0) loss += p.smoothing / static_cast<double>(p.n) * (below + p.weights * log);
  return p.z_loss > 0 ? loss + p.z_loss * lse * lse : loss;
}

template <class C, class Z>
void forward_row(const Problem& p, const Z* z, const Z* next, int64_t target, C* loss, C* stats) {
  const C m = softmax::max_row<C>(z, p.n);
  const double log = log_of(softmax::sum_exp<C>(z, m, p.n, next, next, [](auto...) {}));
  const C* const weight = static_cast<const C*>(p.weight);
  double below = 0;
  if (p.smoothing > 0) {
    below = sum_row<C>(p.n, [=](int64_t i, auto part) {
      const Vector<C> v = m - load<C>(z + i, part);
      return weight ? v * load<C>(weight + i, part) : v;
    });
  }
  *loss = static_cast<C>(loss_of<C>(p, target, load_scalar<C>(z + target), m, log, below));
  stats[0] = m;
  stats[1] = static_cast<C>(log);
}

// Rows of few classes, whose z lie in a tile of columns.
template <class X>
void forward_tiles(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const Problem& p = a.of;
  const Softcap<C> cap(p.softcap);
  const C* const weight = static_cast<const C*>(p.weight);
  RowTile<X, softmax::kFew<C>> x;
  RowTile<C, softmax::kFew<C>> z;
  C largest[kTileRows];
  double log[kTileRows] = {}, below[kTileRows];
  each_tile(first, last, [&](int64_t row, int64_t count) {
    x.of(p.logits, row, p.stride, count, p.n);
    for (int64_t r = 0; r < count; r += kLanes<C>) {
      Vector<C> m = Vector<C>{} + softmax::kLeast<C>;
      for (int64_t i = 0; i < p.n; ++i) {
        const auto v = cap.of(load<C>(x.column(i) + r, Whole{}));
        store<C>(z.column(i) + r, v, Whole{});
        m = larger<C>(v, m);
      }
      RowSum<C> sum, distance;
      for (int64_t i = 0; i < p.n; ++i) {
        const Vector<C> under = load<C>(z.column(i) + r, Whole{}) - m;
        sum.add(vexp<C>(under));
        if (p.smoothing > 0) distance.add(weight ? -under * weight[i] : -under);
      }
      store<C>(largest + r, m, Whole{});
      sum.totals(log + r);
      distance.totals(below + r);
    }
    for (int64_t r = 0; r < count; r += kLanes<double>) {
      store<double>(log + r, vlog(load<double>(log + r, Whole{})), Whole{});
    }
    for (int64_t r = 0; r < count; ++r) {
      const int64_t target = p.target[row + r];
      C* const loss = static_cast<C*>(a.losses) + row + r;
      C* const stats = static_cast<C*>(p.stats) + 2 * (row + r);
      if (target == p.ignore_index) {
        *loss = stats[0] = stats[1] = 0;
        continue;
      }
      const C own = z.column(target)[r];
      *loss = static_cast<C>(loss_of<C>(p, target, own, largest[r], log[r], below[r]));
      stats[0] = largest[r];
      stats[1] = static_cast<C>(log[r]);
    }
  });
}

// Reads the logits (twice, and once more of a softcap or smoothed labels). A target that is ignored
// costs nothing.
template <class X>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const Problem& p = a.of;
  if (p.n <= softmax::kFew<C>) return forward_tiles<X>(a, first, last);
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
      each_vector<C>(
          p.n, [=](int64_t i, auto part) { store<C>(z + i, cap.of(load<C>(x + i, part)), part); });
      forward_row<C>(p, z, z, target, loss, stats);
    } else {
      forward_row<C>(p, x, softmax::next_row(x, p.stride, p.n), target, loss, stats);
    }
  }
}

// Of a row, or of as many as a vector has lanes: dz = own * (e - hit) + each * (e * weights -
// weight) + of_z * e, where e is exp(z - max - log), and hit 1 at the target: so what cancels where
// e is 1 leaves nothing.
template <class C, class T>
struct Slopes {
  T max, log, own, each, of_z;

  Vector<C> dlogits(const Problem& p, const Softcap<C>& cap, const Vector<C>& logits,
                    const Vector<C>& hit, const Vector<C>& weight) const {
    Vector<C> z = logits, share = {};
    if (cap) share = cap.share(z), z = cap.most * share;
    const Vector<C> e = vexp<C>((z - max) - log);
    Vector<C> dz = (e - hit) * own + e * of_z;
    if (p.smoothing > 0) {
      const Vector<C> all = Vector<C>{} + static_cast<C>(p.weights);
      dz = fused<C>(fused<C>(e, all, -weight), Vector<C>{} + each, dz);
    }
    return dz * (1 - share) * (1 + share);
  }
};

template <class C>
Slopes<C, C> slopes_of(const GradientArgs& a, int64_t row) {
  const Problem& p = a.of;
  const C* const stats = static_cast<const C*>(p.stats) + 2 * row;
  const C* const weight = static_cast<const C*>(p.weight);
  const double upstream = static_cast<const C*>(a.dloss)[row * a.step] / a.total;
  const double lse = static_cast<double>(stats[0]) + stats[1];
  const double direct = upstream * (1 - p.smoothing) * (weight ? weight[p.target[row]] : C(1));
  return {stats[0], stats[1], static_cast<C>(direct),
          static_cast<C>(upstream * p.smoothing / static_cast<double>(p.n)),
          static_cast<C>(2 * upstream * p.z_loss * lse)};
}

template <class X>
void gradient_tiles(const GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const Problem& p = a.of;
  const Softcap<C> cap(p.softcap);
  const C* const weight = static_cast<const C*>(p.weight);
  RowTile<X, softmax::kFew<C>> x, dx;
  // One of each of a row's slopes behind the other, as vectors read them.
  C max[kTileRows] = {}, log[kTileRows] = {}, own[kTileRows] = {}, each[kTileRows] = {};
  C of_z[kTileRows] = {}, target[kTileRows] = {};
  each_tile(first, last, [&](int64_t row, int64_t count) {
    x.of(p.logits, row, p.stride, count, p.n);
    for (int64_t r = 0; r < count; ++r) {
      const bool ignored = p.target[row + r] == p.ignore_index;
      const Slopes<C, C> of = ignored ? Slopes<C, C>{} : slopes_of<C>(a, row + r);
      max[r] = of.max, log[r] = of.log, own[r] = of.own, each[r] = of.each, of_z[r] = of.of_z;
      target[r] = static_cast<C>(ignored ? -1 : p.target[row + r]);
    }
    for (int64_t r = 0; r < count; r += kLanes<C>) {
      const auto at_rows = [r](const C* p) { return load<C>(p + r, Whole{}); };
      const Slopes<C, Vector<C>> of{at_rows(max), at_rows(log), at_rows(own), at_rows(each),
                                    at_rows(of_z)};
      for (int64_t i = 0; i < p.n; ++i) {
        const Vector<C> hit = at_rows(target) == static_cast<C>(i) ? Vector<C>{} + 1 : Vector<C>{};
        const Vector<C> w = Vector<C>{} + (weight ? weight[i] : C(1));
        const auto logits = load<C>(x.column(i) + r, Whole{});
        store<C>(dx.column(i) + r, of.dlogits(p, cap, logits, hit, w), Whole{});
      }
    }
    for (int64_t r = 0; r < count; ++r) {
      if (target[r] >= 0) continue;  // ignored: zeros, whatever its logits are
      for (int64_t i = 0; i < p.n; ++i) dx.column(i)[r] = X{};
    }
    X* const to = static_cast<X*>(a.dlogits) + row * a.apart;
    transpose(dx.elements, kTileRows, to, a.apart, p.n, count);
  });
}

// Reads the logits. Writes dlogits.
template <class X>
void gradient(const GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const Problem& p = a.of;
  static_assert(softmax::kFew<C> >= kLanes<C>);
  if (p.n <= softmax::kFew<C>) return gradient_tiles<X>(a, first, last);
  const Softcap<C> cap(p.softcap);
  const C* const weight = static_cast<const C*>(p.weight);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(p.logits) + row * p.stride;
    X* const dx = static_cast<X*>(a.dlogits) + row * a.apart;
    const int64_t target = p.target[row];
    if (target == p.ignore_index) {
      __builtin_memset(dx, 0, p.n * sizeof(X));
      continue;
    }
    const Slopes<C, C> of = slopes_of<C>(a, row);
    const auto slope = [=](int64_t i, C hit, auto part) {
      const Vector<C> w = weight ? load<C>(weight + i, part) : Vector<C>{} + 1;
      return of.dlogits(p, cap, load<C>(x + i, part), Vector<C>{} + hit, w);
    };
    // The last vector overlaps the one before it: read what dx may be written over.
    const int64_t rest = p.n - kLanes<C>;
    const auto end = slope(rest, C(0), Whole{});
    const auto hit = slope(target, C(1), Short{1});
    for (int64_t i = 0; i < rest; i += kLanes<C>)
      store<C>(dx + i, slope(i, C(0), Whole{}), Whole{});
    store<C>(dx + rest, end, Whole{});
    store<C>(dx + target, hit, Short{1});
  }
}

constexpr Kernels kKernels = {{forward<double>, forward<float>, forward<f16>, forward<bf16>},
                              {gradient<double>, gradient<float>, gradient<f16>, gradient<bf16>}};

}  // namespace
}  // namespace fuseline::cross_entropy
