// The backward of layer norm over rows, for the instruction set the including file is built for.
// Everything is in an unnamed namespace and uses no template of the standard library: what the
// linker merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_tiles.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::layer_norm {
namespace {

// A row of the backward. xhat = (x - mean) * rstd - shift, where shift is the mean that the
// rounding of the saved mean leaves: in fp32 of a mean of 1e4 it may be half of a spread of 1e-3.
template <class X, class C>
struct Row {
  const X* dy;
  const X* x;
  int64_t dy_stride, x_stride;
  C mean, rstd, shift;

  template <class Part>
  Vector<C> xhat(int64_t i, Part part) const {
    return (load<C>(x + i, part) - mean) * rstd - shift;
  }
};

// The sums over a row of xhat, g = dy * w and g * xhat. Asks for the next row: the processor's own
// prefetchers rest while dx is written.
template <class W, class X, class C>
inline Several<double, 3> sums_of(const Row<X, C>& row, const W* w, int64_t n) {
  return sum_several<C, 3, 16>(0, n, [=](int64_t i, auto part) {
    __builtin_prefetch(row.dy + row.dy_stride + i);
    __builtin_prefetch(row.x + row.x_stride + i);
    const auto xhat = row.xhat(i, part);
    const auto g = load<C>(row.dy + i, part) * load_weight<C>(w, C{}, i, part);
    return Several<Vector<C>, 3>{{xhat, g, g * xhat}};
  });
}

// dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), and the row's shift. Owns one row. Reads dy,
// x, weight (the second time from cache). Writes dx.
template <class W, class X, class C>
inline void backward_dx(Row<X, C>& row, const W* w, X* dx, int64_t n) {
  const auto sums = sums_of(row, w, n);
  const double count = static_cast<double>(n);
  const double shift = sums.of[0] / count, mean = sums.of[1] / count;
  row.shift = static_cast<C>(shift);
  const C mean_of_g = static_cast<C>(mean);
  const C mean_of_product = static_cast<C>(sums.of[2] / count - shift * mean);
  each_vector<C>(n, [=](int64_t i, auto part) {
    const auto g = load<C>(row.dy + i, part) * load_weight<C>(w, C{}, i, part);
    store<C>(dx + i, (g - mean_of_g - row.xhat(i, part) * mean_of_product) * row.rstd, part);
  });
}

// dweight += sum of dy * xhat, dbias += sum of dy. Owns R rows. Reads dy, x (from cache, after
// backward_dx). Writes those of dweight and dbias, the sums of this chunk, that are not null.
template <int R, class X, class C>
inline void backward_parameters(const Row<X, C>* rows, int64_t n, double* dweight, double* dbias) {
  each_vector<C>(n, [=](int64_t i, auto part) {
    Vector<C> products = {}, sum = {};
    for (int r = 0; r < R; ++r) {
      const auto dy = load<C>(rows[r].dy + i, part);
      if (dweight) products += dy * rows[r].xhat(i, part);
      sum += dy;
    }
    if (dweight) add_to<C>(dweight + i, fresh<C>(products, part), part);
    if (dbias) add_to<C>(dbias + i, fresh<C>(sum, part), part);
  });
}

// The same of a tile of rows of few elements: each function in the steps of a row alone.
template <class X, class W>
struct BackwardTile {
  using C = Compute<X>;
  using V = Vector<C>;
  RowTile<X, kFewOfNorms> dy, x, dx;
  C mean[kTileRows] = {}, rstd[kTileRows] = {}, shift[kTileRows];
  C of_g[kTileRows] = {}, of_product[kTileRows] = {};
  const W* w;
  int64_t n, count;

  void read(const BackwardArgs& args, int64_t row, int64_t rows) {
    w = static_cast<const W*>(args.weight);
    n = args.n, count = rows;
    dy.of(args.dy, row, args.dy_stride, count, n);
    x.of(args.x, row, args.x_stride, count, n);
    std::memcpy(mean, static_cast<const C*>(args.mean) + row, count * sizeof(C));
    std::memcpy(rstd, static_cast<const C*>(args.rstd) + row, count * sizeof(C));
    for (int64_t r = 0; n == 1 && r < count; ++r) rstd[r] *= 0;
    std::memset(shift, 0, sizeof(shift));
    sum();
  }
  V weight(int64_t i) const { return V{} + load_weight<C>(w, C{}, i, Short{1})[0]; }
  V g(int64_t i, int64_t r) const { return load<C>(dy.column(i) + r, Whole{}) * weight(i); }
  V xhat(int64_t i, int64_t r) const {
    return (load<C>(x.column(i) + r, Whole{}) - load<C>(mean + r, Whole{})) *
               load<C>(rstd + r, Whole{}) -
           load<C>(shift + r, Whole{});
  }
  void sum() {
    double sums[3][kTileRows];
    for (int64_t r = 0; r < count; r += kLanes<C>) {
      RowSum<C> of[3];
      for (int64_t i = 0; i < n; ++i) {
        const V v = xhat(i, r), slope = g(i, r);
        of[0].add(v);
        of[1].add(slope);
        of[2].add(slope * v);
      }
      for (int k = 0; k < 3; ++k) of[k].totals(sums[k] + r);
    }
    for (int64_t r = 0; r < count; ++r) {
      const double columns = static_cast<double>(n);
      const double off = sums[0][r] / columns, mean_of_g = sums[1][r] / columns;
      shift[r] = static_cast<C>(off);
      of_g[r] = static_cast<C>(mean_of_g);
      of_product[r] = static_cast<C>(sums[2][r] / columns - off * mean_of_g);
    }
  }
  void write_dx(void* to, int64_t row) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t r = 0; r < count; r += kLanes<C>) {
        const V rest =
            g(i, r) - load<C>(of_g + r, Whole{}) - xhat(i, r) * load<C>(of_product + r, Whole{});
        store<C>(dx.column(i) + r, rest * load<C>(rstd + r, Whole{}), Whole{});
      }
    }
    dx.write(to, row, count, n);
  }
  void add_to(double* dweight, double* dbias) const {
    for (int64_t i = 0; i < n; ++i) {
      V products = {}, sum = {};
      for (int64_t r = 0; r < count; r += kLanes<C>) {
        const Short present{static_cast<int>(count - r < kLanes<C> ? count - r : kLanes<C>)};
        const V of_y = load<C>(dy.column(i) + r, Whole{});
        products += fresh<C>(of_y * xhat(i, r), present);
        sum += fresh<C>(of_y, present);
      }
      if (dweight) dweight[i] += sum_lanes<C>(products);
      if (dbias) dbias[i] += sum_lanes<C>(sum);
    }
  }
};

template <class X, class W>
void backward_tiles(const BackwardArgs& args, int64_t first, int64_t last, double* dweight,
                    double* dbias) {
  BackwardTile<X, W> tile;
  each_tile(first, last, [&](int64_t row, int64_t count) {
    tile.read(args, row, count);
    if (args.dx) tile.write_dx(args.dx, row);
    if (dweight || dbias) tile.add_to(dweight, dbias);
  });
}

// Owns rows [first, last), four at a time: their sum is taken in C, the sum of such sums in fp64.
// Reads dy, x, mean, rstd, weight. Writes dx, dweight and dbias, whichever is requested.
template <class X, class W>
void backward(const BackwardArgs& args, int64_t first, int64_t last, double* dweight,
              double* dbias) {
  using C = Compute<X>;
  constexpr int kGroup = 4;
  const int64_t n = args.n;
  const W* const w = static_cast<const W*>(args.weight);
  const C* const rstd = static_cast<const C*>(args.rstd);
  if (dweight) std::memset(dweight, 0, n * sizeof(double));
  if (dbias) std::memset(dbias, 0, n * sizeof(double));
  if (n > 0 && n <= kFewOfNorms) return backward_tiles<X, W>(args, first, last, dweight, dbias);
  for (int64_t row = first; row < last; row += kGroup) {
    const int count = static_cast<int>(last - row < kGroup ? last - row : kGroup);
    Row<X, C> rows[kGroup];
    for (int r = 0; r < count; ++r) {
      // One element is its own mean: 0 keeps the roundings of g out of dx, and NaN stays NaN.
      rows[r] = {static_cast<const X*>(args.dy) + (row + r) * args.dy_stride,
                 static_cast<const X*>(args.x) + (row + r) * args.x_stride,
                 args.dy_stride,
                 args.x_stride,
                 static_cast<const C*>(args.mean)[row + r],
                 n == 1 ? 0 * rstd[row + r] : rstd[row + r],
                 0};
      if (args.dx) {
        backward_dx(rows[r], w, static_cast<X*>(args.dx) + (row + r) * n, n);
      } else if (dweight) {
        rows[r].shift = static_cast<C>(sums_of(rows[r], w, n).of[0] / static_cast<double>(n));
      }
    }
    if (!dweight && !dbias) continue;
    if (count == kGroup) {
      backward_parameters<kGroup>(rows, n, dweight, dbias);
      continue;
    }
    for (int r = 0; r < count; ++r) backward_parameters<1>(rows + r, n, dweight, dbias);
  }
}

}  // namespace
}  // namespace fuseline::layer_norm
