// What the kernels of softmaxes along columns share, for the instruction set the including file is
// built for: a strip of columns, in vectors, through memory of the thread's own. Everything is in
// an unnamed namespace and uses no template of the standard library: what the linker merges could
// carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_tiles.h"
#include "fuseline/cpu/softmax_rows_kernels.h"

namespace fuseline::softmax {
namespace {

// What of a strip is the same in all rows: a vector for each K of them.
template <class C, int K>
using Across = Several<Vector<C>, K>;

// fp64 sums, a vector for each of kParts<C>, as C.
template <class C>
inline Vector<C> narrow(const Vector<double>* parts) {
  if constexpr (kParts<C> == 1) {
    return parts[0];
  } else {
    Lanes<C, kLanes<C> / 2> halves[2];
    for (int part = 0; part < 2; ++part) {
      halves[part] = __builtin_convertvector(parts[part], Lanes<C, kLanes<C> / 2>);
    }
    return bit_cast<Vector<C>>(halves);
  }
}

// K vectors of columns by n rows, a row at a time, and PLANES planes of them that the caches hold,
// for what is computed once and used again: rows that lie far apart fall into few sets of the
// caches. Columns that are not there hold anything.
template <class C, int K, int PLANES>
class Strip {
 public:
  static constexpr bool kKeeps = PLANES > 0;
  static constexpr int kVectors = K;
  static constexpr int64_t kWidth = K * kLanes<C>;
  using Row = Across<C, K>;

  Strip(const Scratch<C>& scratch, int64_t n, int64_t columns)
      : scratch_(scratch), n_(n), columns_(columns) {}

  int64_t columns() const { return columns_; }
  static Row zeros() { return {}; }
  Vector<C>* at(int plane, int64_t row) const {
    return reinterpret_cast<Vector<C>*>(scratch_.row(plane) + row * kWidth);
  }

  // Vector k of a row. The processor's own prefetchers stop at the end of a page, so memory is
  // asked for what is eight rows on, or in the strip that is next.
  template <class X>
  Vector<C> vector(const X* x, int64_t step, int64_t row, int k) const {
    const X* const from = x + row * step;
    if (k == 0) {
      const bool below = row + 8 < n_;
      const X* const ahead = from + (below ? 8 * step : kWidth - (n_ > 8 ? (n_ - 8) * step : 0));
      for (int64_t i = 0; i < kWidth; i += 64 / sizeof(X)) __builtin_prefetch(ahead + i);
    }
    return whole(row, step) ? load<C>(from + k * kLanes<C>, Whole{})
                            : load<C>(from, Short{static_cast<int>(columns_)});
  }

  template <class Of>
  void each(const Of& of) const {
    for (int64_t row = 0; row < n_; ++row) {
      for (int k = 0; k < K; ++k) of(row, k);
    }
  }

  // One element for each column.
  template <class X>
  Row beside(const X* from) const {
    Row row;
    for (int k = 0; k < K; ++k) {
      row.of[k] = K > 1 ? load<C>(from + k * kLanes<C>, Whole{})
                        : load<C>(from, Short{static_cast<int>(columns_)});
    }
    return row;
  }

  // Fills a plane, if there are any; seen(k, vector) sees each.
  template <class X, class Seen>
  void read(int plane, const X* x, int64_t step, const Seen& seen) const {
    for (int64_t row = 0; row < n_; ++row) {
      for (int k = 0; k < K; ++k) {
        const Vector<C> v = vector(x, step, row, k);
        if constexpr (kKeeps) at(plane, row)[k] = v;
        seen(k, v);
      }
    }
  }
  template <class X>
  Row read_max(int plane, const X* x, int64_t step) const {
    Row max;
    for (auto& m : max.of) m = Vector<C>{} + kLeast<C>;
    read(plane, x, step, [&](int k, const Vector<C>& v) { max.of[k] = larger<C>(v, max.of[k]); });
    return max;
  }

  // What read() saw, kept or read again.
  template <class X>
  Vector<C> read_before(const X* x, int64_t step, int64_t row, int k) const {
    if constexpr (kKeeps) {
      return at(0, row)[k];
    } else {
      return vector(x, step, row, k);
    }
  }

  // of(the sum of term(row, k)), in fp64, rounded.
  template <class Term, class Of>
  Row sum(const Term& term, const Of& of) const {
    const Sums sums = sum(0, n_, term);
    Row row;
    for (int k = 0; k < K; ++k) {
      Vector<double> parts[kParts<C>];
      for (int p = 0; p < kParts<C>; ++p) parts[p] = of(sums.of[k * kParts<C> + p]);
      row.of[k] = narrow<C>(parts);
    }
    return row;
  }
  template <class Term>
  Row sum(const Term& term) const {
    return sum(term, [](const Vector<double>& v) { return v; });
  }

  // Writes vector k of a row, those of rows in their order.
  template <class X>
  void put(X* y, int64_t step, int64_t row, int k, const Vector<C>& v) const {
    X* const to = y + row * step;
    if (whole(row, step)) {
      store<C>(to + k * kLanes<C>, v, Whole{});
    } else {
      store<C>(to, v, Short{static_cast<int>(columns_)});
    }
  }
  // Writes of(row, k).
  template <class X, class Of>
  void write(X* y, int64_t step, const Of& of) const {
    each([&](int64_t row, int k) { put(y, step, row, k, of(row, k)); });
  }

 private:
  using Sums = Across<double, K * kParts<C>>;

  // Whether whole vectors of this row are in the strip's memory: those of few columns reach into
  // rows that follow, which are written later.
  bool whole(int64_t row, int64_t step) const {
    return K > 1 || row * step + kWidth <= (n_ - 1) * step + columns_;
  }

  // Blocks of 16 rows in C, whose sums are added pairwise in fp64: where all terms are alike, all
  // sums err in the same direction.
  template <class Term>
  Sums sum(int64_t first, int64_t last, const Term& term) const {
    constexpr int64_t kBlockRows = 16;
    if (last - first > kBlockRows) {
      const int64_t middle = first + ((last - first) / kBlockRows + 1) / 2 * kBlockRows;
      return sum(first, middle, term) + sum(middle, last, term);
    }
    Row block;
    for (int64_t row = first; row < last; ++row) {
      for (int k = 0; k < K; ++k) block.of[k] += term(row, k);
    }
    Sums wide;
    for (int i = 0; i < K * kParts<C>; ++i) {
      wide.of[i] = widen<C>(block.of[i / kParts<C>], i % kParts<C>);
    }
    return wide;
  }

  const Scratch<C>& scratch_;
  int64_t n_, columns_;
};

// of(strip, slice, column) for the strips of the blocks of columns [first, last): as wide as their
// planes fit a processor's own cache, and one vector wide at the end of a block, where the last one
// is moved back to end with it. What that makes again is the same: a column knows of no other.
template <class C, int PLANES, bool WIDE = true, class Of>
void each_strip(int64_t n, int64_t inner, int64_t first, int64_t last, const Of& of) {
  constexpr int64_t kN = kLanes<C>, kCached = 512 << 10;
  constexpr int kWide = kColumns / kN > 4 ? 4 : kColumns / kN;
  const bool wide = WIDE && n * kWide * kN * PLANES * static_cast<int64_t>(sizeof(C)) <= kCached;
  const Scratch<C> scratch(PLANES, n * kN * (wide ? kWide : 1));
  const int64_t blocks = inner < kColumns ? 1 : inner / kColumns;
  for (int64_t block = first; block < last; ++block) {
    const int64_t slice = block / blocks, begin = block % blocks * kColumns;
    const int64_t end = block % blocks == blocks - 1 ? inner : begin + kColumns;
    int64_t i = begin;
    if constexpr (WIDE) {
      for (; wide && i + kWide * kN <= end; i += kWide * kN) {
        of(Strip<C, kWide, PLANES>(scratch, n, kWide * kN), slice, i);
      }
    }
    for (; i < end; i += kN) {
      if (i + kN > end && end - begin >= kN) i = end - kN;
      of(Strip<C, 1, PLANES>(scratch, n, end - i < kN ? end - i : kN), slice, i);
    }
  }
}

// The same with one plane, or none where it would take more than kMostKept: then `of` reads again.
// On its own, so that the compiler inlines what shorter columns need.
template <class C, class Of>
__attribute__((noinline)) void each_strip_again(int64_t n, int64_t inner, int64_t first,
                                                int64_t last, const Of& of) {
  each_strip<C, 0, false>(n, inner, first, last, of);
}
template <class C, class Of>
void each_strip_or_again(int64_t n, int64_t inner, int64_t first, int64_t last, const Of& of) {
  if (n * kVectorBytes > kMostKept) return each_strip_again<C>(n, inner, first, last, of);
  each_strip<C, 1>(n, inner, first, last, of);
}

// The places of a strip in a forward's tensors.
template <class X>
inline const X* x_at(const ForwardArgs& a, int64_t slice, int64_t column) {
  return static_cast<const X*>(a.x) + slice * a.x_stride + column;
}
template <class X>
inline X* y_at(const ForwardArgs& a, int64_t slice, int64_t column) {
  return static_cast<X*>(a.y) + slice * a.n * a.inner + column;
}

// And in a gradient's.
template <class X>
inline const X* dy_at(const GradientArgs& a, int64_t slice, int64_t column) {
  return static_cast<const X*>(a.dy) + slice * a.dy_stride + column;
}
template <class X>
inline const X* saved_at(const GradientArgs& a, int64_t slice, int64_t column) {
  return static_cast<const X*>(a.saved) + slice * a.saved_stride + column;
}
template <class X>
inline X* dx_at(const GradientArgs& a, int64_t slice, int64_t column) {
  return static_cast<X*>(a.dx) + slice * a.n * a.inner + column;
}

// dx of (dy, y) in one sum: that of Formula::term, of which Formula::dx makes it. Reads dy and y
// twice: planes for so little work took a third longer. Writes dx.
template <class X, class Formula>
void columns_gradient(const GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  each_strip<C, 0>(a.n, a.inner, first, last, [&](const auto& s, int64_t slice, int64_t column) {
    const X* const dy = dy_at<X>(a, slice, column);
    const X* const y = saved_at<X>(a, slice, column);
    const auto sum = s.sum([&](int64_t row, int k) {
      return Formula::template term<C>(s.vector(dy, a.dy_step, row, k),
                                       s.vector(y, a.saved_step, row, k));
    });
    s.write(dx_at<X>(a, slice, column), a.inner, [&](int64_t row, int k) {
      return Formula::template dx<C>(s.vector(dy, a.dy_step, row, k),
                                     s.vector(y, a.saved_step, row, k), sum.of[k]);
    });
  });
}

// dx = y * (dy - sum(dy * y)).
struct OfSoftmax {
  template <class C>
  static Vector<C> term(const Vector<C>& dy, const Vector<C>& y) {
    return dy * y;
  }
  template <class C>
  static Vector<C> dx(const Vector<C>& dy, const Vector<C>& y, const Vector<C>& sum) {
    return y * (dy - sum);
  }
};

// dx = dy - exp(y) * sum(dy).
struct OfLogSoftmax {
  template <class C>
  static Vector<C> term(const Vector<C>& dy, const Vector<C>&) {
    return dy;
  }
  template <class C>
  static Vector<C> dx(const Vector<C>& dy, const Vector<C>& y, const Vector<C>& sum) {
    return dy - vexp<C>(y) * sum;
  }
};

// The longest rows that are taken as columns: two vectors of fp32, one of fp64 (AVX-512, one
// thread: double softmax of 16384 x 1 fp32 in a ninth of the time of rows, 1024 x 16 in 0.4, 512 x
// 32 in 0.53; softmax of 512 x 32 in 0.72, log_softmax of 744 x 22 fp64, which are not, in 1.25).
template <class C>
constexpr int64_t kFew = kLanes<C> * 8 / static_cast<int64_t>(sizeof(C));
// Those of gradients that take no exponential (5000 x 8 fp32 in 0.8 of the time of rows, 2000 x 16
// in 1.2, 5000 x 8 bf16 in 0.5, x 32 in 0.9).
template <class X>
constexpr int64_t kFewOfGradients = sizeof(X) == 2 ? kFew<Compute<X>> : kLanes<Compute<X>> / 2;
template <class X>
using Tile = RowTile<X, kFew<Compute<X>>>;

// As `columns` does; `whole` takes longer rows. STATS: numbers a row that are saved beside x.
template <class X, auto whole, auto columns, int64_t STATS = 0, int64_t FEW = kFew<Compute<X>>>
void forward_rows(const ForwardArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  if (a.n > FEW) return whole(a, first, last);
  RowTile<X, FEW> x, y;
  each_tile(first, last, [&](int64_t row, int64_t count) {
    ForwardArgs tile = a;
    tile.x = x.of(a.x, row, a.x_stride, count, a.n);
    tile.y = y.elements;
    tile.inner = count;
    tile.x_step = kTileRows;
    if (a.stats) tile.stats = static_cast<C*>(a.stats) + row * STATS;
    columns(tile, 0, 1);
    y.write(a.y, row, count, a.n, count);
  });
}
template <class X, auto whole, auto columns, int64_t STATS = 0, int64_t FEW = kFew<Compute<X>>>
void gradient_rows(const GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  if (a.n > FEW) return whole(a, first, last);
  RowTile<X, FEW> dy, saved, dx;
  each_tile(first, last, [&](int64_t row, int64_t count) {
    GradientArgs tile = a;
    tile.dy = dy.of(a.dy, row, a.dy_stride, count, a.n);
    tile.saved = saved.of(a.saved, row, a.saved_stride, count, a.n);
    tile.dx = dx.elements;
    tile.inner = count;
    tile.dy_step = tile.saved_step = kTileRows;
    if (a.stats) tile.stats = static_cast<const C*>(a.stats) + row * STATS;
    columns(tile, 0, 1);
    dx.write(a.dx, row, count, a.n, count);
  });
}

// The softmax's gradient over rows.
template <class X>
constexpr auto kGradientOfRows =
    gradient_rows<X, gradient<X>, columns_gradient<X, OfSoftmax>, 0, kFewOfGradients<X>>;

}  // namespace
}  // namespace fuseline::softmax
