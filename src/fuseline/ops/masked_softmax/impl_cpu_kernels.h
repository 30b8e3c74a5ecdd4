// The softmax of scaled and masked rows, its logarithm, and their gradients, for the instruction
// set the including file is built for. Everything is in an unnamed namespace: what the linker
// merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/softmax_columns_kernels.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::masked_softmax {
namespace {

// Columns of a row that are not hidden: the last row of a matrix sees all.
inline int64_t visible(const Causal& causal, int64_t row, int64_t n) {
  if (!causal.on) return n;
  const int64_t seen = row % causal.queries + 1 + n - causal.queries;
  return seen < 0 ? 0 : seen;
}

// The mask, row by row, its columns side by side: where they are not, they are gathered.
template <class C, class M>
class MaskRows {
 public:
  MaskRows(const ForwardArgs& a, int64_t row, C* gathered)
      : a_(a), from_(static_cast<const M*>(a.mask)), gathered_(a.last == 1 ? nullptr : gathered) {
    for (int64_t d = a.dims - 1; d >= 0; --d) {
      at_[d] = row % a.sizes[d];
      from_ += at_[d] * a.strides[d];
      row /= a.sizes[d];
    }
  }
  // Before the row's `count` columns are loaded.
  void gather(int64_t count) {
    if (!gathered_) return;
    for (int64_t i = 0; i < count; ++i) gathered_[i] = load_scalar<C>(from_ + i * a_.last);
  }
  void next() {
    for (int64_t d = a_.dims - 1; d >= 0; --d) {
      from_ += a_.strides[d];
      if (++at_[d] < a_.sizes[d]) return;
      from_ -= at_[d] * a_.strides[d];
      at_[d] = 0;
    }
  }
  // Columns of the next `count` rows, those of one behind the other, and steps over the rows.
  void tile(int64_t count, int64_t n, M* to) {
    const int64_t inner = a_.dims - 1;
    for (int64_t r = 0; r < count;) {
      const bool rows = a_.dims > 0;
      const int64_t left = rows ? a_.sizes[inner] - at_[inner] : 1,
                    stride = rows ? a_.strides[inner] : 0;
      const int64_t run = left < count - r ? left : count - r;
      if (a_.last == 1) {
        transpose(from_, stride, to + r, kTileRows, run, n);
      } else {
        for (int64_t i = 0; i < n; ++i) {
          transpose(from_ + i * a_.last, stride, to + i * kTileRows + r, kTileRows, run, 1);
        }
      }
      r += run;
      if (!rows) return;
      at_[inner] += run - 1;
      from_ += (run - 1) * stride;
      next();
    }
  }
  template <class Part>
  Vector<C> load(int64_t i, Part part) const {
    return gathered_ ? fuseline::load<C>(gathered_ + i, part) : fuseline::load<C>(from_ + i, part);
  }

 private:
  const ForwardArgs& a_;
  const M* from_;
  C* gathered_;
  int64_t at_[kMostDims];
};
template <class C>
class MaskRows<C, Absent> {
 public:
  MaskRows(const ForwardArgs&, int64_t, C*) {}
  void gather(int64_t) {}
  void next() {}
  template <class Part>
  Vector<C> load(int64_t, Part) const {
    return Vector<C>{};
  }
};

// The mask's tile, of nothing where there is none.
template <class X, class M>
using MaskTile = RowTile<M, std::is_same_v<M, Absent> ? 1 : softmax::kFew<Compute<X>>>;

// What causal leaves of each row of a tile: `of` elements, in vectors for its strips.
template <class C>
struct Seen {
  C of[kTileRows];

  Seen(const Causal& causal, int64_t row, int64_t count, int64_t n) {
    for (int64_t r = 0; r < kTileRows; ++r) {
      of[r] = static_cast<C>(r < count ? visible(causal, row + r, n) : n);
    }
  }
  // v, or `other` in rows of which column i is hidden.
  Vector<C> keep(int64_t column, int64_t i, const Vector<C>& v, C other) const {
    const auto seen = fuseline::load<C>(of + column, Whole{});
    return seen > static_cast<C>(i) ? v : Vector<C>{} + other;
  }
};

// z = scale * x + mask, y = exp(z - m) / sum(exp(z - m)), m = max(z); or its logarithm. Reads what
// causal does not hide of x and the mask. Writes y.
template <class X, class M, bool LOG>
void forward(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const softmax::Scratch<C> scratch(2, a.n);
  C* const z = scratch.row(0);
  const Vector<C> scale = Vector<C>{} + static_cast<C>(a.scale);
  MaskRows<C, M> mask(a, first, scratch.row(1));
  for (int64_t row = first; row < last; ++row, mask.next()) {
    const X* const x = static_cast<const X*>(a.x) + row * a.x_stride;
    X* const y = static_cast<X*>(a.y) + row * a.n;
    const int64_t count = visible(a.causal, row, a.n), padded = softmax::padded<C>(count);
    mask.gather(count);
    // Whole vectors, since the next pass overwrites what it reads; the added ones give 0.
    const auto read = [&](int64_t i, auto part) {
      const auto v = fused<C>(load<C>(x + i, part), scale, mask.load(i, part));
      store<C>(z + i, softmax::or_least<C>(v, part), Whole{});
    };
    int64_t i = 0;
    for (; i + kLanes<C> <= count; i += kLanes<C>) read(i, Whole{});
    if (i < count) read(i, Short{static_cast<int>(count - i)});
    const C m = softmax::max_row<C>(z, padded);
    const X* const next = softmax::next_row(x, a.x_stride, a.n);
    const double sum = sum_row<C>(padded, [=](int64_t i, auto part) {
      __builtin_prefetch(next + i);
      __builtin_prefetch(y + i, 1);
      const Vector<C> shifted = load<C>(z + i, part) - m, e = vexp<C>(shifted);
      store<C>(z + i, LOG ? shifted : e, part);
      return e;
    });
    C hidden = LOG ? softmax::kLeast<C> : C(0);
    if constexpr (LOG) {
      const C log = static_cast<C>(vlog(Vector<double>{} + sum)[0]);
      each_vector<C>(
          count, [=](int64_t i, auto part) { store<C>(y + i, load<C>(z + i, part) - log, part); });
    } else {
      softmax::scale_row<C>(z, y, count, static_cast<C>(1 / sum));
    }
    // Where nothing is left, or a NaN, all of the row is NaN.
    if (!(sum > 0)) hidden = static_cast<C>(__builtin_nan(""));
    each_vector<C>(a.n - count, [=](int64_t i, auto part) {
      store<C>(y + count + i, Vector<C>{} + hidden, part);
    });
  }
}

// The same of rows of few columns, a tile of them at a time.
template <class X, class M, bool LOG>
void forward_tiles(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  constexpr bool kMasked = !std::is_same_v<M, Absent>;
  const Vector<C> scale = Vector<C>{} + static_cast<C>(a.scale);
  softmax::Tile<X> xs, ys;
  MaskTile<X, M> added;
  MaskRows<C, M> mask(a, first, nullptr);
  each_tile(first, last, [&](int64_t row, int64_t count) {
    const X* const x = xs.of(a.x, row, a.x_stride, count, a.n);
    if constexpr (kMasked) mask.tile(count, a.n, added.elements);
    const Seen<C> seen(a.causal, row, count, a.n);
    const auto of = [&](const auto& s, int64_t, int64_t column) {
      auto m = s.zeros();
      for (auto& v : m.of) v = Vector<C>{} + softmax::kLeast<C>;
      s.each([&](int64_t i, int k) {
        const int64_t at = column + k * kLanes<C>;
        Vector<C> z = s.vector(x + column, kTileRows, i, k), add = {};
        if constexpr (kMasked) add = s.vector(added.column(0) + column, kTileRows, i, k);
        z = fused<C>(z, scale, add);
        if (a.causal.on) z = seen.keep(at, i, z, softmax::kLeast<C>);
        s.at(0, i)[k] = z;
        m.of[k] = larger<C>(z, m.of[k]);
      });
      const auto exponential = [&](int64_t i, int k) {
        Vector<C>& z = s.at(0, i)[k];
        const Vector<C> shifted = z - m.of[k], e = vexp<C>(shifted);
        z = LOG ? shifted : e;
        return e;
      };
      // Where nothing is left, or a NaN, the sum is NaN, and all of the row.
      if constexpr (LOG) {
        const auto log = s.sum(exponential, vlog);
        s.write(ys.column(0) + column, count,
                [&](int64_t i, int k) { return s.at(0, i)[k] - log.of[k]; });
      } else {
        const auto factor = s.sum(exponential, [](const Vector<double>& sum) { return 1 / sum; });
        s.write(ys.column(0) + column, count,
                [&](int64_t i, int k) { return s.at(0, i)[k] * factor.of[k]; });
      }
    };
    softmax::each_strip<C, 1>(a.n, count, 0, 1, of);
    ys.write(a.y, row, count, a.n, count);
  });
}

// dx = scale * Formula's, zeros where causal hides x. Reads dy and y (twice). Writes dx.
template <class X, class Formula>
void gradient(const GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const dy = static_cast<const X*>(a.dy) + row * a.dy_stride;
    const X* const y = static_cast<const X*>(a.y) + row * a.y_stride;
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const int64_t count = visible(a.causal, row, a.n);
    const Vector<C> sum =
        Vector<C>{} + static_cast<C>(sum_row<C>(a.n, [=](int64_t i, auto part) {
          return Formula::template term<C>(load<C>(dy + i, part), load<C>(y + i, part));
        }));
    each_vector<C>(count, [=, scale = static_cast<C>(a.scale)](int64_t i, auto part) {
      const auto dz = Formula::template dx<C>(load<C>(dy + i, part), load<C>(y + i, part), sum);
      store<C>(dx + i, dz * scale, part);
    });
    each_vector<C>(a.n - count,
                   [=](int64_t i, auto part) { store<C>(dx + count + i, Vector<C>{}, part); });
  }
}

// The gradient of rows of few columns.
template <class X, class Formula>
void gradient_tiles(const GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  const C scale = static_cast<C>(a.scale);
  softmax::Tile<X> dys, saved, dxs;
  each_tile(first, last, [&](int64_t row, int64_t count) {
    const X* const dy = dys.of(a.dy, row, a.dy_stride, count, a.n);
    const X* const y = saved.of(a.y, row, a.y_stride, count, a.n);
    const Seen<C> seen(a.causal, row, count, a.n);
    const auto of = [&](const auto& s, int64_t, int64_t column) {
      const auto at = [&](const X* from, int64_t i, int k) {
        return s.vector(from + column, kTileRows, i, k);
      };
      const auto sum = s.sum(
          [&](int64_t i, int k) { return Formula::template term<C>(at(dy, i, k), at(y, i, k)); });
      s.write(dxs.column(0) + column, count, [&](int64_t i, int k) {
        const auto dz = Formula::template dx<C>(at(dy, i, k), at(y, i, k), sum.of[k]) * scale;
        return a.causal.on ? seen.keep(column + k * kLanes<C>, i, dz, 0) : dz;
      });
    };
    softmax::each_strip<C, 0>(a.n, count, 0, 1, of);
    dxs.write(a.dx, row, count, a.n, count);
  });
}

// Their length alone says how rows are taken.
template <class X, class M, bool LOG>
void forward_any(const ForwardArgs& a, int64_t first, int64_t last) {
  const bool few = a.n <= softmax::kFew<Compute<X>>;
  few ? forward_tiles<X, M, LOG>(a, first, last) : forward<X, M, LOG>(a, first, last);
}
template <class X, class Formula>
void gradient_any(const GradientArgs& a, int64_t first, int64_t last) {
  const bool few = a.n <= softmax::kFewOfGradients<X>;
  few ? gradient_tiles<X, Formula>(a, first, last) : gradient<X, Formula>(a, first, last);
}

template <bool LOG, class X>
constexpr auto kOfX = forward_any<X, X, LOG>;
template <bool LOG, class X>
constexpr auto kOfFloat = forward_any<X, float, LOG>;
template <bool LOG, class X>
constexpr auto kAlone = forward_any<X, Absent, LOG>;

template <bool LOG, class X>
constexpr auto kGradient =
    gradient_any<X, std::conditional_t<LOG, softmax::OfLogSoftmax, softmax::OfSoftmax>>;

constexpr Kernels kKernels = {
    {{{kAlone<false, double>, kAlone<false, float>, kAlone<false, f16>, kAlone<false, bf16>},
      {kAlone<true, double>, kAlone<true, float>, kAlone<true, f16>, kAlone<true, bf16>}},
     {{kOfX<false, double>, kOfX<false, float>, kOfX<false, f16>, kOfX<false, bf16>},
      {kOfX<true, double>, kOfX<true, float>, kOfX<true, f16>, kOfX<true, bf16>}},
     {{kOfFloat<false, double>, kOfFloat<false, float>, kOfFloat<false, f16>,
       kOfFloat<false, bf16>},
      {kOfFloat<true, double>, kOfFloat<true, float>, kOfFloat<true, f16>, kOfFloat<true, bf16>}}},
    {{kGradient<false, double>, kGradient<false, float>, kGradient<false, f16>,
      kGradient<false, bf16>},
     {kGradient<true, double>, kGradient<true, float>, kGradient<true, f16>,
      kGradient<true, bf16>}}};

}  // namespace
}  // namespace fuseline::masked_softmax
