// The gradients of the root-mean-square norm over rows, for the instruction set the including file
// is built for. Everything is in an unnamed namespace and uses no template of the standard library:
// what the linker merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/rms_rows.h"
#include "fuseline/cpu/row_sums.h"
#include "fuseline/cpu/row_tiles.h"

namespace fuseline::rms {
namespace {

// dx = rstd * (dy * w - xhat * mean(dy * w * xhat)) + added, xhat = x * rstd, where w is offset +
// weight. Owns one row. Reads
// dy, x, weight (the second time from cache), added. Writes dx.
template <class X, class W, class A, class C>
inline void backward_dx(const X* dy, const X* x, const W* w, C offset, const A* added, C rstd,
                        X* dx, int64_t n) {
  const double sum = sum_row<C>(n, [=](int64_t i, auto part) {
    return load<C>(dy + i, part) * load_weight<C>(w, offset, i, part) *
           (load<C>(x + i, part) * rstd);
  });
  const C mean = static_cast<C>(sum / static_cast<double>(n));
  each_vector<C>(n, [=](int64_t i, auto part) {
    const auto dxhat = load<C>(dy + i, part) * load_weight<C>(w, offset, i, part);
    const auto xhat = load<C>(x + i, part) * rstd;
    store<C>(dx + i, plus<C>((dxhat - xhat * mean) * rstd, added, i, part), part);
  });
}

// dweight += sum of dy * xhat. Owns R rows. Reads dy, x (from cache, after backward_dx), rstd.
// Writes dweight, the sums of this chunk.
template <int R, class X, class C>
inline void backward_dweight(const X* dy, int64_t dy_stride, const X* x, int64_t x_stride,
                             const C* rstd, int64_t n, double* dweight) {
  each_vector<C>(n, [=](int64_t i, auto part) {
    Vector<C> sum = {};
    for (int r = 0; r < R; ++r) {
      const auto xhat = load<C>(x + r * x_stride + i, part) * rstd[r];
      sum += load<C>(dy + r * dy_stride + i, part) * xhat;
    }
    add_to<C>(dweight + i, fresh<C>(sum, part), part);
  });
}

// The same of rows of few elements, by tiles. w: the weight of each column and its offset.
template <class X>
void backward_tiles(const BackwardArgs& args, const Compute<X>* w, bool adds, int64_t first,
                    int64_t last, double* dweight) {
  using C = Compute<X>;
  using V = Vector<C>;
  const int64_t n = args.n;
  RowTile<X, kFewOfNorms> dy, x, added, dx;
  C rstd[kTileRows] = {}, mean[kTileRows] = {};
  double sums[kTileRows];
  const auto of_y = [&](int64_t i, int64_t r) { return load<C>(dy.column(i) + r, Whole{}); };
  const auto xhat = [&](int64_t i, int64_t r) {
    return load<C>(x.column(i) + r, Whole{}) * load<C>(rstd + r, Whole{});
  };
  each_tile(first, last, [&](int64_t row, int64_t count) {
    dy.of(args.dy, row, args.dy_stride, count, n);
    x.of(args.x, row, args.x_stride, count, n);
    std::memcpy(rstd, static_cast<const C*>(args.rstd) + row, count * sizeof(C));
    for (int64_t r = 0; args.dx && r < count; r += kLanes<C>) {
      RowSum<C> sum;
      for (int64_t i = 0; i < n; ++i) sum.add(of_y(i, r) * w[i] * xhat(i, r));
      sum.totals(sums + r);
    }
    if (args.dx) {
      for (int64_t r = 0; r < count; ++r) {
        mean[r] = static_cast<C>(sums[r] / static_cast<double>(n));
      }
      if (adds) added.of(args.added, row, args.added_stride, count, n);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t r = 0; r < count; r += kLanes<C>) {
          const V rest = of_y(i, r) * w[i] - xhat(i, r) * load<C>(mean + r, Whole{});
          V v = rest * load<C>(rstd + r, Whole{});
          if (adds) v += load<C>(added.column(i) + r, Whole{});
          store<C>(dx.column(i) + r, v, Whole{});
        }
      }
      dx.write(args.dx, row, count, n);
    }
    for (int64_t i = 0; dweight && i < n; ++i) {
      V sum = {};
      for (int64_t r = 0; r < count; r += kLanes<C>) {
        const Short present{static_cast<int>(count - r < kLanes<C> ? count - r : kLanes<C>)};
        sum += fresh<C>(of_y(i, r) * xhat(i, r), present);
      }
      dweight[i] += sum_lanes<C>(sum);
    }
  });
}

// Owns rows [first, last), four at a time: their sum is taken in C, the sum of such sums in fp64.
// Reads dy, x, rstd, weight, added. Writes dx and dweight, whichever is requested.
template <class X, class W, class A>
void backward(const BackwardArgs& args, int64_t first, int64_t last, double* dweight) {
  using C = Compute<X>;
  constexpr int kGroup = 4;
  const int64_t n = args.n;
  const W* w = static_cast<const W*>(args.weight);
  const C offset = static_cast<C>(args.weight_offset);
  if (dweight) std::memset(dweight, 0, n * sizeof(double));
  if (n > 0 && n <= kFewOfNorms) {
    C scale[kFewOfNorms];
    for (int64_t i = 0; i < n; ++i) scale[i] = load_weight<C>(w, offset, i, Short{1})[0];
    return backward_tiles<X>(args, scale, !std::is_same_v<A, Absent>, first, last, dweight);
  }
  for (int64_t row = first; row < last; row += kGroup) {
    const X* dy = static_cast<const X*>(args.dy) + row * args.dy_stride;
    const X* x = static_cast<const X*>(args.x) + row * args.x_stride;
    const C* rstd = static_cast<const C*>(args.rstd) + row;
    const int64_t count = last - row < kGroup ? last - row : kGroup;
    for (int64_t r = 0; args.dx && r < count; ++r) {
      const A* added = static_cast<const A*>(args.added) + (row + r) * args.added_stride;
      X* dx = static_cast<X*>(args.dx) + (row + r) * n;
      backward_dx(dy + r * args.dy_stride, x + r * args.x_stride, w, offset, added, rstd[r], dx, n);
    }
    if (!dweight) continue;
    if (count == kGroup) {
      backward_dweight<kGroup>(dy, args.dy_stride, x, args.x_stride, rstd, n, dweight);
      continue;
    }
    for (int64_t r = 0; r < count; ++r) {
      backward_dweight<1>(dy + r * args.dy_stride, 0, x + r * args.x_stride, 0, rstd + r, n,
                          dweight);
    }
  }
}

}  // namespace
}  // namespace fuseline::rms
