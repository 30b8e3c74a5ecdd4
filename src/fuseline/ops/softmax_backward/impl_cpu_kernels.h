// The gradients of softmax_backward, for the instruction set the including file is built for.
// Everything is in an unnamed namespace: what the linker merges could carry wider instructions than
// the processor has.
#pragma once

#include "fuseline/cpu/softmax_columns_kernels.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::softmax_backward {
namespace {

// With a = sum(ddx * y) and b = sum(dy * y):
//   of_dy = y * (ddx - a),   of_y = ddx * (dy - b) - dy * a.
template <class C>
inline Vector<C> of_dy(const Vector<C>& ddx, const Vector<C>& y, const Vector<C>& a) {
  return y * (ddx - a);
}
template <class C>
inline Vector<C> of_y(const Vector<C>& ddx, const Vector<C>& dy, const Vector<C>& a,
                      const Vector<C>& b) {
#ifdef __FMA__
  // Of two products a compiler picks the one it fuses, a strip's width perhaps with it.
  return fused<C>(ddx, dy - b, -(dy * a));
#else
  return ddx * (dy - b) - dy * a;
#endif
}

template <class X>
inline const X* at(const View& v, int64_t row, int64_t column = 0) {
  return static_cast<const X*>(v.data) + row * v.stride + column;
}

// Reads all three (twice). Writes both gradients.
template <class X>
void rows_bwd(const BwdArgs& args, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const ddx = at<X>(args.ddx, row);
    const X* const dy = at<X>(args.dy, row);
    const X* const y = at<X>(args.y, row);
    X* const to_dy = static_cast<X*>(args.of_dy) + row * args.n;
    X* const to_y = static_cast<X*>(args.of_y) + row * args.n;
    const auto sums = sum_several<C, 2, 16>(0, args.n, [=](int64_t i, auto part) {
      const Vector<C> p = load<C>(y + i, part);
      __builtin_prefetch(to_dy + i, 1);
      __builtin_prefetch(to_y + i, 1);
      return Several<Vector<C>, 2>{{load<C>(ddx + i, part) * p, load<C>(dy + i, part) * p}};
    });
    const Vector<C> a = Vector<C>{} + static_cast<C>(sums.of[0]);
    const Vector<C> b = Vector<C>{} + static_cast<C>(sums.of[1]);
    const X* const next_ddx = softmax::next_row(ddx, args.ddx.stride, args.n);
    const X* const next_dy = softmax::next_row(dy, args.dy.stride, args.n);
    const X* const next_y = softmax::next_row(y, args.y.stride, args.n);
    each_vector<C>(args.n, [=](int64_t i, auto part) {
      __builtin_prefetch(next_ddx + i);
      __builtin_prefetch(next_dy + i);
      __builtin_prefetch(next_y + i);
      const Vector<C> g = load<C>(ddx + i, part), d = load<C>(dy + i, part);
      store<C>(to_dy + i, of_dy<C>(g, load<C>(y + i, part), a), part);
      store<C>(to_y + i, of_y<C>(g, d, a, b), part);
    });
  }
}

// The same of columns. Reads y three times, the others twice. Writes both gradients.
template <class X>
void columns_bwd(const BwdArgs& args, int64_t first, int64_t last) {
  using C = Compute<X>;
  const auto strips = [&](const auto& s, int64_t slice, int64_t column) {
    const auto in = [&](const View& v) {
      return [&s, &v, from = at<X>(v, slice, column)](int64_t row, int k) {
        return s.vector(from, v.step, row, k);
      };
    };
    const auto ddx = in(args.ddx), dy = in(args.dy), y = in(args.y);
    // Two sums at once are fused with their products as it suits a strip's width.
    const auto a = s.sum([&](int64_t row, int k) { return ddx(row, k) * y(row, k); });
    const auto b = s.sum([&](int64_t row, int k) { return dy(row, k) * y(row, k); });
    X* const to_dy = static_cast<X*>(args.of_dy) + slice * args.n * args.inner + column;
    X* const to_y = static_cast<X*>(args.of_y) + slice * args.n * args.inner + column;
    s.each([&](int64_t row, int k) {
      const Vector<C> g = ddx(row, k), d = dy(row, k);
      s.put(to_dy, args.inner, row, k, of_dy<C>(g, y(row, k), a.of[k]));
      s.put(to_y, args.inner, row, k, of_y<C>(g, d, a.of[k], b.of[k]));
    });
  };
  softmax::each_strip<C, 0>(args.n, args.inner, first, last, strips);
}

// Rows of few elements by tiles.
template <class X>
void any_rows_bwd(const BwdArgs& args, int64_t first, int64_t last) {
  if (args.n > softmax::kFewOfGradients<X>) return rows_bwd<X>(args, first, last);
  softmax::Tile<X> ddx, dy, y, to_dy, to_y;
  each_tile(first, last, [&](int64_t row, int64_t count) {
    const auto in = [&](softmax::Tile<X>& tile, const View& v) {
      return View{tile.of(v.data, row, v.stride, count, args.n), 0, kTileRows};
    };
    const BwdArgs tile{in(ddx, args.ddx), in(dy, args.dy), in(y, args.y), to_dy.elements,
                       to_y.elements,     args.n,          count};
    columns_bwd<X>(tile, 0, 1);
    to_dy.write(args.of_dy, row, count, args.n, count);
    to_y.write(args.of_y, row, count, args.n, count);
  });
}

using softmax::columns_gradient, softmax::kGradientOfRows, softmax::OfSoftmax;

constexpr Kernels kKernels = {
    {{},
     {},
     {kGradientOfRows<double>, kGradientOfRows<float>, kGradientOfRows<f16>, kGradientOfRows<bf16>},
     {columns_gradient<double, OfSoftmax>, columns_gradient<float, OfSoftmax>,
      columns_gradient<f16, OfSoftmax>, columns_gradient<bf16, OfSoftmax>}},
    {any_rows_bwd<double>, any_rows_bwd<float>, any_rows_bwd<f16>, any_rows_bwd<bf16>},
    {columns_bwd<double>, columns_bwd<float>, columns_bwd<f16>, columns_bwd<bf16>}};

}  // namespace
}  // namespace fuseline::softmax_backward
