// The forward of layer norm over rows, and the table of all its kernels, for the instruction set
// the including file is built for. Everything is in an unnamed namespace and uses no template of
// the standard library: what the linker merges could carry wider instructions than the processor
// has.
#pragma once

#include "impl_cpu_backward.h"

namespace fuseline::layer_norm {
namespace {

// The sum of two of C.
template <class C>
struct Pair {
  C high, low;

  // a + b, in a type of twice the bits or nearly.
  template <class Wide>
  explicit Pair(Wide a, Wide b = 0)
      : high(static_cast<C>(a + b)), low(static_cast<C>((a - high) + b)) {}
};

// What a row is normalised by.
template <class C>
struct Moments {
  Pair<C> mean, rstd;
};

// A row, the one after it, and its place in y. Prefetches the other two while the row is read: the
// processor's own prefetchers rest while y is written.
template <class X>
struct Place {
  const X* x;
  const X* next;
  X* y;

  template <class Part>
  Vector<double> read(int64_t i, Part part) const {
    __builtin_prefetch(next + i);
    __builtin_prefetch(y + i, 1);
    return load<double>(x + i, part);
  }
};

// In one pass over x - x[0]: x[0] is one of n elements, so at most sqrt(n - 1) standard deviations
// off their mean, and the difference of the squares loses at most a factor n of the bits of fp64.
template <class X>
inline Moments<float> moments_of(const Place<X>& row, int64_t n, double eps) {
  const double first = n > 0 ? load<double>(row.x, Short{1})[0] : 0;
  const double count = static_cast<double>(n);
  const auto sums = sum_several<double, 2, 64>(0, n, [=](int64_t i, auto part) {
    const auto v = row.read(i, part) - first;
    return Several<Vector<double>, 2>{{v, v * v}};
  });
  const double mean = sums.of[0] / count, square = sums.of[1] / count - mean * mean;
  return {Pair<float>(first, mean), Pair<float>(1 / __builtin_sqrt(square + eps))};
}

// a - b and what the rounding of that loses.
template <class C>
inline Several<Vector<C>, 2> difference(const Vector<C>& a, const Vector<C>& b) {
  const Vector<C> v = a - b, moved = v - a;
  return {{v, (a - (v - moved)) - (b + moved)}};
}

// There are no vectors of more than fp64: a rough mean, and the differences from that, their
// squares and the sums of both with what they lose.
inline Moments<double> moments_of(const Place<double>& row, int64_t n, double eps) {
  const double rough = sum_row<double>(n, [=](int64_t i, auto part) { return row.read(i, part); }) /
                       static_cast<double>(n);
  Compensated sum, squares;
  each_vector<double>(n, [&](int64_t i, auto part) {
    const auto from_rough =
        difference<double>(load<double>(row.x + i, part), Vector<double>{} + rough);
    const auto v = fresh<double>(from_rough.of[0], part);
    const auto lost = fresh<double>(from_rough.of[1], part);
    const auto square = fused<double>(v, v, Vector<double>{});
    sum.add(v);
    sum.lost += lost;
    squares.add(square);
    squares.lost += fused<double>(v, v, -square) + 2 * v * lost;
  });
  const long double mean = sum.total() / n, square = squares.total() / n - mean * mean;
  return {Pair<double>(static_cast<long double>(rough), mean),
          Pair<double>(1 / __builtin_sqrtl(square + eps))};
}

// A vector of elements, of one row or of as many.
template <class C>
struct Normed {
  Vector<C> mean, rest_of_mean, rstd, rest_of_rstd;

  // (x - mean) * rstd * w + b, of which the last addition may leave little: up to there xhat has
  // what its roundings lose.
  Vector<C> of(const Vector<C>& x, const Vector<C>& weight, const Vector<C>& bias) const {
    const auto v = difference<C>(x, mean);
    const Vector<C> xhat = v.of[0] * rstd;
    const Vector<C> rest =
        fused<C>(v.of[1] - rest_of_mean, rstd,
                 fused<C>(v.of[0], rest_of_rstd, fused<C>(v.of[0], rstd, -xhat)));
    return fused<C>(xhat, weight, bias) + rest * weight;
  }
};

// Owns one row. Reads x (from cache), weight, bias. Writes y.
template <class X, class W, class B, class C>
inline void write_row(const X* x, const W* w, const B* b, X* y, int64_t n, const Moments<C>& row) {
  using V = Vector<C>;
  const Normed<C> normed{V{} + row.mean.high, V{} + row.mean.low, V{} + row.rstd.high,
                         V{} + row.rstd.low};
  each_vector<C>(n, [=](int64_t i, auto part) {
    const V weight = load_weight<C>(w, C{}, i, part), bias = plus<C>(V{}, b, i, part);
    store<C>(y + i, normed.of(load<C>(x + i, part), weight, bias), part);
  });
}

inline long double element(const Absent*, int64_t, long double otherwise) { return otherwise; }
template <class P>
inline long double element(const P* parameter, int64_t i, long double) {
  return load<double>(parameter + i, Short{1})[0];
}

// Whether a weight is Inf or NaN: Inf times what an xhat has lost, which may be 0, is no infinity.
template <class C, class W>
inline bool is_infinite(const W* w, int64_t n) {
  Vector<C> sum{};
  each_vector<C>(n, [&](int64_t i, auto part) {
    const Vector<C> weight = load_weight<C>(w, C{}, i, part);
    sum += weight - weight;
  });
  for (int i = 0; i < kLanes<C>; ++i) {
    if (sum[i] != 0) return true;
  }
  return false;
}

// The whole of it as it is written, for a row whose rstd or squares C cannot represent, be they Inf
// or NaN, and for an infinite weight. Owns one row. Returns its moments.
template <class X, class W, class B, class C = Compute<X>>
__attribute__((noinline)) Moments<C> plain_row(const X* x, const W* w, const B* b, X* y, int64_t n,
                                               double eps) {
  long double sum = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) sum += element(x, i, 0);
  const long double mean = sum / n;
  for (int64_t i = 0; i < n; ++i) {
    const long double v = element(x, i, 0) - mean;
    squares += v * v;
  }
  const long double rstd = 1 / __builtin_sqrtl(squares / n + eps);
  for (int64_t i = 0; i < n; ++i) {
    const long double v = (element(x, i, 0) - mean) * rstd * element(w, i, 1) + element(b, i, 0);
    store<double>(y + i, Vector<double>{static_cast<double>(v)}, Short{1});
  }
  return {Pair<C>(mean), Pair<C>(rstd)};
}

template <class C>
inline bool is_ordinary(C rstd) {
  constexpr C kMost = static_cast<C>(sizeof(C) == 8 ? 1e140 : 1e30);
  return rstd <= kMost && rstd >= 1 / kMost;
}

// Moments of the rows of a tile, as of a row alone.
struct TileMoments {
  float mean[kTileRows] = {}, rest_of_mean[kTileRows] = {};
  float rstd[kTileRows] = {}, rest_of_rstd[kTileRows] = {};

  template <class X>
  void of(const RowTile<X, kFewOfNorms>& x, int64_t count, int64_t n, double eps) {
    constexpr int64_t kN = kLanes<double>;
    double sums[kTileRows], squares[kTileRows], firsts[kTileRows];
    for (int64_t r = 0; r < count; r += kN) {
      const auto first = load<double>(x.column(0) + r, Whole{});
      Vector<double> sum = {}, square = {};
      for (int64_t i = 1; i < n; ++i) {
        const auto v = load<double>(x.column(i) + r, Whole{}) - first;
        sum += v;
        square += v * v;
      }
      store<double>(firsts + r, first, Whole{});
      store<double>(sums + r, first - first + sum, Whole{});  // an Inf alone has no mean
      store<double>(squares + r, square, Whole{});
    }
    for (int64_t r = 0; r < count; ++r) {
      const double columns = static_cast<double>(n), mean_of_rest = sums[r] / columns;
      const double square = squares[r] / columns - mean_of_rest * mean_of_rest;
      const Pair<float> whole(firsts[r], mean_of_rest), inverse(1 / __builtin_sqrt(square + eps));
      mean[r] = whole.high, rest_of_mean[r] = whole.low;
      rstd[r] = inverse.high, rest_of_rstd[r] = inverse.low;
    }
  }
  Normed<float> at(int64_t r) const {
    return {load<float>(mean + r, Whole{}), load<float>(rest_of_mean + r, Whole{}),
            load<float>(rstd + r, Whole{}), load<float>(rest_of_rstd + r, Whole{})};
  }
};

// Rows of few elements, by tiles.
template <class X, class W, class B>
void forward_tiles(const ForwardArgs& args, int64_t first, int64_t last) {
  const int64_t n = args.n;
  const W* const w = static_cast<const W*>(args.weight);
  const B* const b = static_cast<const B*>(args.bias);
  const bool ordinary = !is_infinite<float>(w, n);
  RowTile<X, kFewOfNorms> x, y;
  TileMoments moments;
  each_tile(first, last, [&](int64_t row, int64_t count) {
    x.of(args.x, row, args.x_stride, count, n);
    moments.of(x, count, n, args.eps);
    for (int64_t i = 0; i < n; ++i) {
      const auto weight = Vector<float>{} + load_weight<float>(w, 0.f, i, Short{1})[0];
      const auto bias = Vector<float>{} + plus<float>(Vector<float>{}, b, i, Short{1})[0];
      for (int64_t r = 0; r < count; r += kLanes<float>) {
        const auto v = load<float>(x.column(i) + r, Whole{});
        store<float>(y.column(i) + r, moments.at(r).of(v, weight, bias), Whole{});
      }
    }
    y.write(args.y, row, count, n);
    for (int64_t r = 0; r < count; ++r) {
      if (ordinary && is_ordinary(moments.rstd[r])) continue;
      const X* const from = static_cast<const X*>(args.x) + (row + r) * args.x_stride;
      const auto found =
          plain_row(from, w, b, static_cast<X*>(args.y) + (row + r) * n, n, args.eps);
      moments.mean[r] = found.mean.high, moments.rstd[r] = found.rstd.high;
    }
    if (!args.mean) return;
    std::memcpy(static_cast<float*>(args.mean) + row, moments.mean, count * sizeof(float));
    std::memcpy(static_cast<float*>(args.rstd) + row, moments.rstd, count * sizeof(float));
  });
}

// Owns rows [first, last). Reads x twice, the second time from cache, weight, bias. Writes y and,
// if requested, mean and rstd.
template <class X, class W, class B>
void forward(const ForwardArgs& args, int64_t first, int64_t last) {
  using C = Compute<X>;
  if constexpr (sizeof(C) < 8) {
    if (args.n > 0 && args.n <= kFewOfNorms) return forward_tiles<X, W, B>(args, first, last);
  }
  const W* const w = static_cast<const W*>(args.weight);
  const B* const b = static_cast<const B*>(args.bias);
  const bool ordinary = !is_infinite<C>(w, args.n);
  for (int64_t row = first; row < last; ++row) {
    const X* const x = static_cast<const X*>(args.x) + row * args.x_stride;
    X* const y = static_cast<X*>(args.y) + row * args.n;
    Moments<C> moments = moments_of(Place<X>{x, x + args.x_stride, y}, args.n, args.eps);
    if (ordinary && is_ordinary(moments.rstd.high)) {
      write_row(x, w, b, y, args.n, moments);
    } else {
      moments = plain_row(x, w, b, y, args.n, args.eps);
    }
    if (!args.mean) continue;
    static_cast<C*>(args.mean)[row] = moments.mean.high;
    static_cast<C*>(args.rstd)[row] = moments.rstd.high;
  }
}

template <class X, class W>
void forward_pair(const ForwardArgs& args, int64_t first, int64_t last) {
  if (args.weight && args.bias) return forward<X, W, W>(args, first, last);
  if (args.weight) return forward<X, W, Absent>(args, first, last);
  if (args.bias) return forward<X, Absent, W>(args, first, last);
  forward<X, Absent, Absent>(args, first, last);
}

template <class X, class W>
void backward_pair(const BackwardArgs& args, int64_t first, int64_t last, double* dweight,
                   double* dbias) {
  args.weight ? backward<X, W>(args, first, last, dweight, dbias)
              : backward<X, Absent>(args, first, last, dweight, dbias);
}

constexpr Kernels kKernels = {
    {{forward_pair<double, double>},
     {forward_pair<float, float>, forward_pair<float, float>},
     {forward_pair<f16, f16>, forward_pair<f16, float>},
     {forward_pair<bf16, bf16>, forward_pair<bf16, float>}},
    {{backward_pair<double, double>},
     {backward_pair<float, float>, backward_pair<float, float>},
     {backward_pair<f16, f16>, backward_pair<f16, float>},
     {backward_pair<bf16, bf16>, backward_pair<bf16, float>}},
    {sum_chunks<double>, sum_chunks<float>, sum_chunks<f16>, sum_chunks<bf16>}};

}  // namespace
}  // namespace fuseline::layer_norm
