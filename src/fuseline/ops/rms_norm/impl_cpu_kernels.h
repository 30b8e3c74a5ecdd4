// RMSNorm over rows, forward and backward, for the instruction set the including file is built for
// (it defines FUSELINE_ISA). Everything is in an unnamed namespace and uses no template of the
// standard library: what the linker merges could carry wider instructions than the processor has.
#include "impl_cpu_dispatch.h"
#include "impl_cpu_lanes.h"

namespace fuseline::rms_norm {
namespace {

// Terms that one lane sums in C, one after the other; longer rows are halved and added in fp64, so
// that the error of rstd grows with the logarithm of the row.
constexpr int64_t kBlockSteps = 64;

// The sum over columns [first, last) of term(i, count), the vector of `count` columns from i on.
template <class C, class Term>
inline double sum_columns(int64_t first, int64_t last, const Term& term) {
  constexpr int64_t kStep = 4 * kLanes<C>;
  const int64_t steps = (last - first) / kStep;
  if (steps > kBlockSteps) {
    const int64_t middle = first + steps / 2 * kStep;
    return sum_columns<C>(first, middle, term) + sum_columns<C>(middle, last, term);
  }
  Vector<C> a = {}, b = {}, c = {}, d = {};
  int64_t i = first;
  for (const int64_t end = first + steps * kStep; i < end; i += kStep) {
    a += term(i, Full{});
    b += term(i + kLanes<C>, Full{});
    c += term(i + 2 * kLanes<C>, Full{});
    d += term(i + 3 * kLanes<C>, Full{});
  }
  for (; i + kLanes<C> <= last; i += kLanes<C>) a += term(i, Full{});
  if (i < last) b += term(i, last - i);
  return sum_lanes<C>((a + b) + (c + d));
}

// body(i, count) for all n columns, a vector at a time.
template <class C, class Body>
inline void each_columns(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + kLanes<C> <= n; i += kLanes<C>) body(i, Full{});
  if (i < n) body(i, n - i);
}

// A row whose mean square left the normal range of C, in fp64; fp64 itself is brought back by a
// power of two. Owns one row. Reads x (twice), weight. Writes y; returns rstd.
template <class X, class W>
__attribute__((noinline)) double second_look(const X* x, const W* w, X* y, int64_t n, double eps,
                                             double first_look) {
  double scale = 1;
  if (sizeof(X) == sizeof(double)) scale = first_look < 1 ? 0x1p600 : 0x1p-600;
  const double sum = sum_columns<double>(0, n, [=](int64_t i, auto count) {
    const auto v = load<double>(x + i, count) * scale;
    return v * v;
  });
  const double rstd = 1 / __builtin_sqrt(sum / static_cast<double>(n) + eps * scale * scale);
  each_columns<double>(n, [=](int64_t i, auto count) {
    const auto xhat = load<double>(x + i, count) * scale * rstd;
    store<double>(y + i, xhat * load_weight<double>(w, i, count), count);
  });
  return rstd * scale;
}

// y = x * rstd * weight. Owns rows [first, last). Reads x (the second time from cache), weight.
// Writes y and, if asked for, rstd.
template <class X, class W>
void forward(const ForwardArgs& args, int64_t first, int64_t last) {
  using C = Compute<X>;
  constexpr double kLeast = sizeof(C) == sizeof(double) ? 1e-280 : 1e-30;
  const int64_t n = args.n;
  const W* w = static_cast<const W*>(args.weight);
  for (int64_t row = first; row < last; ++row) {
    const X* x = static_cast<const X*>(args.x) + row * args.stride;
    X* y = static_cast<X*>(args.y) + row * n;
    const double sum = sum_columns<C>(0, n, [=](int64_t i, auto count) {
      const auto v = load<C>(x + i, count);
      return v * v;
    });
    const double mean = sum / static_cast<double>(n) + args.eps;
    double rstd = 1 / __builtin_sqrt(mean);
    if (mean >= kLeast && mean < __builtin_inf()) {
      each_columns<C>(n, [=, r = static_cast<C>(rstd)](int64_t i, auto count) {
        store<C>(y + i, load<C>(x + i, count) * r * load_weight<C>(w, i, count), count);
      });
    } else {
      rstd = second_look(x, w, y, n, args.eps, mean);
    }
    if (args.rstd) static_cast<C*>(args.rstd)[row] = static_cast<C>(rstd);
  }
}

// dx = rstd * (dy * w - xhat * mean(dy * w * xhat)), xhat = x * rstd. Owns one row. Reads dy, x,
// weight (the second time from cache). Writes dx.
template <class X, class W, class C>
inline void backward_dx(const X* dy, const X* x, const W* w, C rstd, X* dx, int64_t n) {
  const double sum = sum_columns<C>(0, n, [=](int64_t i, auto count) {
    return load<C>(dy + i, count) * load_weight<C>(w, i, count) * (load<C>(x + i, count) * rstd);
  });
  const C mean = static_cast<C>(sum / static_cast<double>(n));
  each_columns<C>(n, [=](int64_t i, auto count) {
    const auto dxhat = load<C>(dy + i, count) * load_weight<C>(w, i, count);
    const auto xhat = load<C>(x + i, count) * rstd;
    store<C>(dx + i, (dxhat - xhat * mean) * rstd, count);
  });
}

// dweight += sum of dy * xhat. Owns R rows. Reads dy, x (from cache, after backward_dx), rstd.
// Writes dweight, the sums of this chunk.
template <int R, class X, class C>
inline void backward_dweight(const X* dy, int64_t dy_stride, const X* x, int64_t x_stride,
                             const C* rstd, int64_t n, double* dweight) {
  each_columns<C>(n, [=](int64_t i, auto count) {
    Vector<C> sum = {};
    for (int r = 0; r < R; ++r) {
      const auto xhat = load<C>(x + r * x_stride + i, count) * rstd[r];
      sum += load<C>(dy + r * dy_stride + i, count) * xhat;
    }
    add_lanes<C>(dweight + i, sum, count);
  });
}

// Owns rows [first, last), four at a time: their sum is taken in C, the sum of such sums in fp64.
// Reads dy, x, rstd, weight. Writes dx and dweight, whichever is asked for.
template <class X, class W>
void backward(const BackwardArgs& args, int64_t first, int64_t last, double* dweight) {
  using C = Compute<X>;
  constexpr int kGroup = 4;
  const int64_t n = args.n;
  const W* w = static_cast<const W*>(args.weight);
  if (dweight) std::memset(dweight, 0, n * sizeof(double));
  for (int64_t row = first; row < last; row += kGroup) {
    const X* dy = static_cast<const X*>(args.dy) + row * args.dy_stride;
    const X* x = static_cast<const X*>(args.x) + row * args.x_stride;
    const C* rstd = static_cast<const C*>(args.rstd) + row;
    const int64_t count = last - row < kGroup ? last - row : kGroup;
    for (int64_t r = 0; args.dx && r < count; ++r) {
      X* dx = static_cast<X*>(args.dx) + (row + r) * n;
      backward_dx(dy + r * args.dy_stride, x + r * args.x_stride, w, rstd[r], dx, n);
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

// dweight = the total over chunks. Owns columns [first, last). Reads and overwrites sums, pairwise
// so that the error grows with the logarithm of the chunks. Writes dweight.
template <class W>
void reduce(double* sums, int64_t chunks, int64_t n, int64_t first, int64_t last, void* dweight) {
  const int64_t columns = last - first;
  for (int64_t step = 1; step < chunks; step *= 2) {
    for (int64_t c = 0; c + step < chunks; c += 2 * step) {
      double* a = sums + c * n + first;
      const double* b = a + step * n;
      for (int64_t i = 0; i < columns; ++i) a[i] += b[i];
    }
  }
  each_columns<double>(columns, [=](int64_t i, auto count) {
    store<double>(static_cast<W*>(dweight) + first + i, load<double>(sums + first + i, count),
                  count);
  });
}

template <class X, class W>
void forward_pair(const ForwardArgs& args, int64_t first, int64_t last) {
  args.weight ? forward<X, W>(args, first, last) : forward<X, NoWeight>(args, first, last);
}

template <class X, class W>
void backward_pair(const BackwardArgs& args, int64_t first, int64_t last, double* dweight) {
  args.weight ? backward<X, W>(args, first, last, dweight)
              : backward<X, NoWeight>(args, first, last, dweight);
}

}  // namespace

#define FUSELINE_JOIN_(a, b) a##b
#define FUSELINE_JOIN(a, b) FUSELINE_JOIN_(a, b)
#define FUSELINE_STRING_(a) #a
#define FUSELINE_STRING(a) FUSELINE_STRING_(a)

// Rows: x is f64, f32, f16, bf16; columns: weight is.
const Kernels FUSELINE_JOIN(kernels_, FUSELINE_ISA) = {
    FUSELINE_STRING(FUSELINE_ISA),
    {{forward_pair<double, double>, forward_pair<double, float>},
     {nullptr, forward_pair<float, float>},
     {nullptr, forward_pair<f16, float>, forward_pair<f16, f16>},
     {nullptr, forward_pair<bf16, float>, nullptr, forward_pair<bf16, bf16>}},
    {{backward_pair<double, double>, backward_pair<double, float>},
     {nullptr, backward_pair<float, float>},
     {nullptr, backward_pair<f16, float>, backward_pair<f16, f16>},
     {nullptr, backward_pair<bf16, float>, nullptr, backward_pair<bf16, bf16>}},
    {reduce<double>, reduce<float>, reduce<f16>, reduce<bf16>}};

}  // namespace fuseline::rms_norm
