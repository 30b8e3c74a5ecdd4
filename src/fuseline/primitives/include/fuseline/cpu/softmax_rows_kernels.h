// What the row kernels of softmaxes share, for the instruction set the including file is built for.
// Everything is in an unnamed namespace and uses no template of the standard library: what the
// linker merges could carry wider instructions than the processor has.
#pragma once

#include <new>

#include "fuseline/cpu/row_sums.h"
#include "fuseline/cpu/softmax_rows.h"
#include "fuseline/cpu/vectors/vector_math.h"

namespace fuseline::softmax {
namespace {

template <class C>
constexpr C kLeast = -static_cast<C>(__builtin_inf());

// Elements of a row, and those after it up to the end of its last vector.
template <class C>
constexpr int64_t padded(int64_t n) {
  return (n + kLanes<C> - 1) / kLanes<C> * kLanes<C>;
}

// The most bytes that a thread keeps of what it could also compute again.
constexpr int64_t kMostKept = 16 << 20;

// Rows of C for what is computed once and used again: a thread's own, which its caches hold. What
// small calls need is on the stack: memory from the heap took a tenth of them.
template <class C>
class Scratch {
 public:
  Scratch(int64_t rows, int64_t n) : stride_(padded<C>(n)), data_(small_) {
    const int64_t bytes = rows * stride_ * static_cast<int64_t>(sizeof(C));
    if (bytes > kSmall) data_ = static_cast<C*>(::operator new(bytes, kAlignment));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (data_ != small_) ::operator delete(data_, kAlignment);
  }

  C* row(int64_t i) const { return data_ + i * stride_; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  static constexpr int64_t kSmall = 8192;
  int64_t stride_;
  C* data_;
  alignas(64) C small_[kSmall / sizeof(C)];
};

// v with lanes after the end of the row that change neither a maximum nor a sum of exponentials.
template <class C>
inline Vector<C> or_least(const Vector<C>& v, Whole) {
  return v;
}
template <class C>
inline Vector<C> or_least(const Vector<C>& v, Short part) {
  return lane_numbers<C>() < part.columns ? v : Vector<C>{} + kLeast<C>;
}
template <class C, class X, class Part>
inline Vector<C> load_or_least(const X* p, Part part) {
  return or_least<C>(load<C>(p, part), part);
}

template <class C, int N>
inline C largest_lane(const Lanes<C, N>& v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    const auto a = half<C, N>(v, 0), b = half<C, N>(v, 1);
    return largest_lane<C, N / 2>(a > b ? a : b);
  }
}

// A NaN is passed over, or not: what is made of it is NaN all the same.
template <class C, class X>
__attribute__((always_inline)) inline C max_row(const X* x, int64_t n) {
  constexpr int64_t kN = kLanes<C>;
  Vector<C> a = Vector<C>{} + kLeast<C>, b = a, c = a, d = a;
  int64_t i = 0;
  for (; i + 4 * kN <= n; i += 4 * kN) {
    a = larger<C>(load<C>(x + i, Whole{}), a);
    b = larger<C>(load<C>(x + i + kN, Whole{}), b);
    c = larger<C>(load<C>(x + i + 2 * kN, Whole{}), c);
    d = larger<C>(load<C>(x + i + 3 * kN, Whole{}), d);
  }
  each_vector<C>(0, i, n,
                 [&](int64_t j, auto part) { a = larger<C>(load_or_least<C>(x + j, part), a); });
  return largest_lane<C, kLanes<C>>(larger<C>(larger<C>(a, b), larger<C>(c, d)));
}

// The row after x, to ask memory for in time, or x itself where the caches would not hold both.
template <class X>
inline const X* next_row(const X* x, int64_t stride, int64_t n) {
  constexpr int64_t kMost = (256 << 10) / sizeof(X);
  return n <= kMost ? x + stride : x;
}

// The sum of exp(x - m), each vector of which is handed to keep(i, e, part). Exponentials keep the
// processor busy, so the next row and the result's lines are prefetched meanwhile.
template <class C, class X, class Keep>
__attribute__((always_inline)) inline double sum_exp(const X* x, C m, int64_t n, const X* next,
                                                     const X* y, const Keep& keep) {
  return sum_row<C>(n, [=](int64_t i, auto part) __attribute__((always_inline)) {
    __builtin_prefetch(next + i);
    __builtin_prefetch(y + i, 1);
    const Vector<C> e = vexp<C>(load_or_least<C>(x + i, part) - m);
    keep(i, e, part);
    return e;
  });
}

// The same, kept in e.
template <class C, class X>
__attribute__((always_inline)) inline double exp_row(const X* x, C m, C* e, int64_t n,
                                                     const X* next, const X* y) {
  return sum_exp<C>(x, m, n, next, y,
                    [=](int64_t i, const Vector<C>& v, auto part) { store<C>(e + i, v, part); });
}

template <class C, class Y>
__attribute__((always_inline)) inline void scale_row(const C* e, Y* y, int64_t n, C scale) {
  each_vector<C>(
      n, [=](int64_t i, auto part) { store<C>(y + i, load<C>(e + i, part) * scale, part); });
}

// dx = y * (dy - sum(dy * y)). Reads dy and y (twice). Writes dx. AHEAD asks memory for the next
// row and for dx.
template <class X, bool AHEAD>
void gradient(const GradientArgs& a, int64_t first, int64_t last) {
  using C = Compute<X>;
  for (int64_t row = first; row < last; ++row) {
    const X* const dy = static_cast<const X*>(a.dy) + row * a.dy_stride;
    const X* const y = static_cast<const X*>(a.saved) + row * a.saved_stride;
    X* const dx = static_cast<X*>(a.dx) + row * a.n;
    const C sum = static_cast<C>(sum_row<C>(a.n, [=](int64_t i, auto part) {
      if constexpr (AHEAD) __builtin_prefetch(dx + i, 1);
      return load<C>(dy + i, part) * load<C>(y + i, part);
    }));
    each_vector<C>(a.n, [=](int64_t i, auto part) {
      if constexpr (AHEAD) {
        __builtin_prefetch(dy + a.dy_stride + i);
        __builtin_prefetch(y + a.saved_stride + i);
      }
      store<C>(dx + i, load<C>(y + i, part) * (load<C>(dy + i, part) - sum), part);
    });
  }
}

// Longer rows fall out of the first cache for what is asked for, which half types, whose
// conversions leave memory idle, have time for: 250 x 4096 fp32 took a quarter longer with it, 60 x
// 19959 a half, 100 x 333 a third longer without, 300 x 4000 bf16 a sixth.
template <class X>
void gradient(const GradientArgs& a, int64_t first, int64_t last) {
  constexpr int64_t kMost = (sizeof(X) == 2 ? 32 : 4) << 10;
  const bool ahead = a.n * static_cast<int64_t>(sizeof(X)) <= kMost;
  ahead ? gradient<X, true>(a, first, last) : gradient<X, false>(a, first, last);
}

}  // namespace
}  // namespace fuseline::softmax
