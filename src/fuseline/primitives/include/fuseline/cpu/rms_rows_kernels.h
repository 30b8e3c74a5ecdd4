// The root-mean-square norm over rows, forward and backward, for the instruction set the including
// file is built for. Everything is in an unnamed namespace and uses no template of the standard
// library: what the linker merges could carry wider instructions than the processor has.
#pragma once

#include <cfloat>

#include "fuseline/cpu/rms_rows_backward.h"

namespace fuseline::rms {
namespace {

// A row whose mean square left the normal range of C, in fp64; fp64 itself is brought back by a
// power of two. Owns one row. Reads x (twice), weight. Writes y; returns rstd.
template <class X, class W>
__attribute__((noinline)) double fallback(const X* x, const W* w, double offset, X* y, int64_t n,
                                          double eps, double largest) {
  double scale = 1;
  if (sizeof(X) == sizeof(double)) scale = largest < 1 ? 0x1p600 : 0x1p-600;
  const double sum = sum_row<double>(n, [=](int64_t i, auto part) {
    const auto v = load<double>(x + i, part) * scale;
    return v * v;
  });
  const double rstd = 1 / __builtin_sqrt(sum / static_cast<double>(n) + eps * scale * scale);
  // In one step where that step is a normal number: the scaled small elements of a row may not be.
  const bool one_step = rstd * scale >= DBL_MIN && rstd * scale <= DBL_MAX;
  const double first = one_step ? rstd * scale : scale, second = one_step ? 1 : rstd;
  each_vector<double>(n, [=](int64_t i, auto part) {
    const auto xhat = load<double>(x + i, part) * first * second;
    store<double>(y + i, xhat * load_weight<double>(w, offset, i, part), part);
  });
  return rstd * scale;
}

// The squares of a row of x or, if kAdds, of x + residual as it is rounded to new_residual. Reads
// them. Writes new_residual.
template <bool kAdds, class C, class X>
struct Squares {
  const X* x;
  const X* residual = nullptr;
  X* new_residual = nullptr;

  Squares(const ForwardArgs& args, int64_t row)
      : x(static_cast<const X*>(args.x) + row * args.x_stride) {
    if constexpr (kAdds) {
      residual = static_cast<const X*>(args.residual) + row * args.residual_stride;
      new_residual = static_cast<X*>(args.new_residual) + row * args.n;
    }
  }

  const X* normalised() const { return kAdds ? new_residual : x; }

  template <class Part>
  Vector<C> operator()(int64_t i, Part part) const {
    // Two pages: the processor's own prefetchers stop at the end of one.
    constexpr int64_t kAhead = 8192 / sizeof(X);
    __builtin_prefetch(x + i + kAhead);
    Vector<C> v = load<C>(x + i, part);
    if constexpr (kAdds) {
      __builtin_prefetch(residual + i + kAhead);
      v += load<C>(residual + i, part);
      store<C>(new_residual + i, v, part);
      v = rounded<X, C>(v);
    }
    return v * v;
  }
};

// y = h * rstd * (offset + weight) of R rows, for which the weight is converted once. Reads h,
// weight. Writes y.
template <int R, class X, class W, class C>
struct Scaling {
  const X* h;
  int64_t h_stride;
  const C* rstd;
  const W* w;
  C offset;
  X* y;
  int64_t n;

  template <class Part>
  void operator()(int64_t i, Part part) const {
    const auto weight = load_weight<C>(w, offset, i, part);
    for (int r = 0; r < R; ++r) {
      store<C>(y + r * n + i, load<C>(h + r * h_stride + i, part) * rstd[r] * weight, part);
    }
  }
};

// Rows from here on are squared while the row before is written, which keeps memory at work; half
// types are bound by their conversions.
template <class X>
constexpr int64_t kLongRow = sizeof(X) == 2 ? INT64_MAX : 256;

// Most rows of a batch.
constexpr int64_t kMostRows = 32;

// Whether neither the mean square nor eps, of which this is the larger, needs the fallback.
template <class C>
bool in_range(double largest) {
  constexpr bool kDouble = sizeof(C) == sizeof(double);
  return largest >= (kDouble ? 1e-280 : 1e-30) && largest <= (kDouble ? DBL_MAX : FLT_MAX) / 2;
}

// y = h * rstd * (weight_offset + weight), where h is x or, if kAdds, new_residual = x + residual,
// a row at a time. Owns rows [first, last). Reads x, residual, weight, and h a second time from
// cache. Writes new_residual, y and, if requested, rstd.
template <bool kAdds, class X, class W>
void forward_rows(const ForwardArgs& args, int64_t first, int64_t last) {
  using C = Compute<X>;
  const int64_t n = args.n;
  const W* w = static_cast<const W*>(args.weight);
  const C offset = static_cast<C>(args.weight_offset);
  bool summed = false;
  double sum = 0;
  for (int64_t row = first; row < last; ++row) {
    const Squares<kAdds, C, X> squares(args, row);
    if (!summed) sum = sum_row<C>(n, squares);
    const X* h = squares.normalised();
    X* y = static_cast<X*>(args.y) + row * n;
    const double square = sum / static_cast<double>(n), size = __builtin_fabs(args.eps);
    const double largest = square > size ? square : size;  // their sum is 0 where eps = -square
    double rstd = 1 / __builtin_sqrt(square + args.eps);
    const bool usual = in_range<C>(largest);
    const auto write = [=, r = static_cast<C>(rstd)](int64_t i, auto part) {
      store<C>(y + i, load<C>(h + i, part) * r * load_weight<C>(w, offset, i, part), part);
    };
    summed = usual && n >= kLongRow<X> && row + 1 < last;
    if (summed) {
      const Squares<kAdds, C, X> next(args, row + 1);
      sum = sum_blocks<C>(0, n, [=](int64_t i, auto part) {
        write(i, part);
        return next(i, part);
      });
    } else if (usual) {
      each_vector<C>(n, write);
    } else {
      rstd = fallback(h, w, args.weight_offset, y, n, args.eps, largest);
    }
    if (args.rstd) static_cast<C*>(args.rstd)[row] = static_cast<C>(rstd);
  }
}

// The most columns by tiles: 4096 x 8 fp32 21 instead of 32 us, 2048 x 16 18 instead of 17.
constexpr int64_t kFew = 8;

// The same of few elements a row, by tiles.
template <bool kAdds, class X, class W>
void forward_tiles(const ForwardArgs& args, int64_t first, int64_t last) {
  using C = Compute<X>;
  const int64_t n = args.n;
  const W* w = static_cast<const W*>(args.weight);
  const C offset = static_cast<C>(args.weight_offset);
  const double columns = static_cast<double>(n), eps = args.eps, size = __builtin_fabs(eps);
  RowTile<X, kFew> h, added, ys;
  double sums[kTileRows], largest[kTileRows];
  C rstd[kTileRows] = {};
  each_tile(first, last, [&](int64_t row, int64_t count) {
    h.of(args.x, row, args.x_stride, count, n);
    if constexpr (kAdds) added.of(args.residual, row, args.residual_stride, count, n);
    for (int64_t r = 0; r < count; r += kLanes<C>) {
      RowSum<C> sum;
      for (int64_t i = 0; i < n; ++i) {
        Vector<C> v = load<C>(h.column(i) + r, Whole{});
        if constexpr (kAdds) {
          v += load<C>(added.column(i) + r, Whole{});
          store<C>(h.column(i) + r, v, Whole{});
          v = rounded<X, C>(v);
        }
        sum.add(v * v);
      }
      sum.totals(sums + r);
    }
    for (int64_t r = 0; r < count; ++r) {
      const double square = sums[r] / columns;
      largest[r] = square > size ? square : size;  // their sum is 0 where eps = -square
      rstd[r] = static_cast<C>(1 / __builtin_sqrt(square + eps));
    }
    for (int64_t i = 0; i < n; ++i) {
      const Vector<C> weight = Vector<C>{} + load_weight<C>(w, offset, i, Short{1})[0];
      for (int64_t r = 0; r < count; r += kLanes<C>) {
        const auto v = load<C>(h.column(i) + r, Whole{}) * load<C>(rstd + r, Whole{}) * weight;
        store<C>(ys.column(i) + r, v, Whole{});
      }
    }
    ys.write(args.y, row, count, n);
    if constexpr (kAdds) h.write(args.new_residual, row, count, n);
    for (int64_t r = 0; r < count; ++r) {
      if (in_range<C>(largest[r])) continue;
      rstd[r] = static_cast<C>(fallback(Squares<kAdds, C, X>(args, row + r).normalised(), w,
                                        args.weight_offset, static_cast<X*>(args.y) + (row + r) * n,
                                        n, eps, largest[r]));
    }
    if (args.rstd) std::memcpy(static_cast<C*>(args.rstd) + row, rstd, count * sizeof(C));
  });
}

// The same, a batch of short rows at a time: rows wait for their rstd together.
template <bool kAdds, class X, class W>
void forward_batches(const ForwardArgs& args, int64_t first, int64_t last, int64_t batch) {
  using C = Compute<X>;
  using Row = Squares<kAdds, C, X>;
  constexpr int64_t kGroup = 4;
  const int64_t n = args.n, h_stride = kAdds ? n : args.x_stride;
  const W* w = static_cast<const W*>(args.weight);
  const C offset = static_cast<C>(args.weight_offset);
  const double columns = static_cast<double>(n), eps = args.eps, size = __builtin_fabs(eps);
  double sums[kMostRows], largest[kMostRows];
  C rstd[kMostRows];
  for (int64_t row = first; row < last; row += batch) {
    const int64_t count = last - row < batch ? last - row : batch;
    const X* h = Row(args, row).normalised();
    X* y = static_cast<X*>(args.y) + row * n;
    for (int64_t r = 0; r < count; ++r) sums[r] = sum_row<C>(n, Row(args, row + r));
    for (int64_t r = 0; r < count; ++r) {
      const double square = sums[r] / columns;
      largest[r] = square > size ? square : size;  // their sum is 0 where eps = -square
      rstd[r] = static_cast<C>(1 / __builtin_sqrt(square + eps));
    }
    const auto write = [&](auto rows, int64_t r) {
      each_vector<C>(n, Scaling<rows(), X, W, C>{h + r * h_stride, h_stride, rstd + r, w, offset,
                                                 y + r * n, n});
    };
    int64_t r = 0;
    for (; r + kGroup <= count; r += kGroup) write(std::integral_constant<int, kGroup>{}, r);
    for (; r < count; ++r) write(std::integral_constant<int, 1>{}, r);
    for (r = 0; r < count; ++r) {
      if (in_range<C>(largest[r])) continue;
      rstd[r] = static_cast<C>(
          fallback(h + r * h_stride, w, args.weight_offset, y + r * n, n, eps, largest[r]));
    }
    if (args.rstd) std::memcpy(static_cast<C*>(args.rstd) + row, rstd, count * sizeof(C));
  }
}

template <bool kAdds, class X, class W>
void forward(const ForwardArgs& args, int64_t first, int64_t last) {
  // Larger batches leave memory idle while they are written.
  constexpr int64_t kBytes = 5 << 10;
  int64_t batch = kMostRows;
  while (batch > 1 && batch * args.n * static_cast<int64_t>(sizeof(X)) > kBytes) batch /= 2;
  if (args.n <= kFew) {
    forward_tiles<kAdds, X, W>(args, first, last);
  } else if (batch > 1 && args.n < kLongRow<X>) {
    forward_batches<kAdds, X, W>(args, first, last, batch);
  } else {
    forward_rows<kAdds, X, W>(args, first, last);
  }
}

// What adds a residual adds nothing to the weight.
template <bool kAdds, class X, class W>
void forward_pair(const ForwardArgs& args, int64_t first, int64_t last) {
  if (!args.weight) return forward<kAdds, X, Absent>(args, first, last);
  if constexpr (!kAdds) {
    if (args.weight_offset != 0) return forward<kAdds, X, Shifted<W>>(args, first, last);
  }
  forward<kAdds, X, W>(args, first, last);
}

template <bool kAdds, class X, class A, class W>
void backward_weighted(const BackwardArgs& args, int64_t first, int64_t last, double* dweight) {
  if (!args.weight) return backward<X, Absent, A>(args, first, last, dweight);
  if constexpr (!kAdds) {
    if (args.weight_offset != 0) return backward<X, Shifted<W>, A>(args, first, last, dweight);
  }
  backward<X, W, A>(args, first, last, dweight);
}

template <bool kAdds, class X, class W>
void backward_pair(const BackwardArgs& args, int64_t first, int64_t last, double* dweight) {
  if constexpr (kAdds) {
    if (args.added) return backward_weighted<kAdds, X, X, W>(args, first, last, dweight);
  }
  backward_weighted<kAdds, X, Absent, W>(args, first, last, dweight);
}

// Rows: x is f64, f32, f16, bf16; columns: weight is.
template <bool kAdds>
constexpr Kernels kKernels = {
    {{forward_pair<kAdds, double, double>},
     {nullptr, forward_pair<kAdds, float, float>},
     {nullptr, forward_pair<kAdds, f16, float>, forward_pair<kAdds, f16, f16>},
     {nullptr, forward_pair<kAdds, bf16, float>, nullptr, forward_pair<kAdds, bf16, bf16>}},
    {{backward_pair<kAdds, double, double>},
     {nullptr, backward_pair<kAdds, float, float>},
     {nullptr, backward_pair<kAdds, f16, float>, backward_pair<kAdds, f16, f16>},
     {nullptr, backward_pair<kAdds, bf16, float>, nullptr, backward_pair<kAdds, bf16, bf16>}},
    {sum_chunks<double>, sum_chunks<float>, sum_chunks<f16>, sum_chunks<bf16>}};

}  // namespace
}  // namespace fuseline::rms
