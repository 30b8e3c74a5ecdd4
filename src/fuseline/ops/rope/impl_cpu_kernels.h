// Rotations of pairs, for the instruction set the including file is built for. Everything is in an
// unnamed namespace: what the linker merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_sums.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::rope {
namespace {

// The numbers of a token, for the first and the second element of each pair.
template <class T>
struct Angles {
  const T *cos[2], *sin[2];
};

// One row; element i of a pair lies with i + pairs.
template <class X, class T>
void rotate_halves(const X* x, X* y, const Angles<T>& by, int64_t pairs, bool back) {
  using C = Compute<X>;
  each_vector<C>(pairs, [=](int64_t i, auto part) {
    const Vector<C> first = load<C>(x + i, part), second = load<C>(x + pairs + i, part);
    const Vector<C> s = load<C>(by.sin[0] + i, part), t = load<C>(by.sin[1] + i, part);
    const Vector<C> c = load<C>(by.cos[0] + i, part), d = load<C>(by.cos[1] + i, part);
    store<C>(y + i, fused<C>(first, c, -(second * (back ? -s : s))), part);
    store<C>(y + pairs + i, fused<C>(second, d, first * (back ? -t : t)), part);
  });
}

// One row; pairs are neighbours, which some at a time are taken apart.
template <class X, class T>
void rotate_neighbours(const X* x, X* y, const Angles<T>& by, int64_t pairs, bool back) {
  using C = Compute<X>;
  constexpr int64_t kPairs = 64;
  C values[2 * kPairs], c[2][kPairs], s[2][kPairs];
  for (int64_t begin = 0; begin < pairs; begin += kPairs) {
    const int64_t count = pairs - begin < kPairs ? pairs - begin : kPairs;
    const auto take = [](const auto* from, int64_t n, C* to) {
      each_vector<C>(
          n, [=](int64_t i, auto part) { store<C>(to + i, load<C>(from + i, part), part); });
    };
    take(x + 2 * begin, 2 * count, values);
    for (int k = 0; k < 2; ++k) {
      take(by.cos[k] + begin, count, c[k]);
      take(by.sin[k] + begin, count, s[k]);
    }
    for (int64_t i = 0; i < count; ++i) {
      const C first = values[2 * i], second = values[2 * i + 1];
      values[2 * i] = __builtin_fma(first, c[0][i], -(second * (back ? -s[0][i] : s[0][i])));
      values[2 * i + 1] = __builtin_fma(second, c[1][i], first * (back ? -s[1][i] : s[1][i]));
    }
    X* const to = y + 2 * begin;
    each_vector<C>(2 * count, [=, &values](int64_t i, auto part) {
      store<C>(to + i, load<C>(values + i, part), part);
    });
  }
}

template <class X, class T>
void rotate(const Rotation& r, int64_t first, int64_t last) {
  for (int64_t at = first; at < last; ++at) {
    const int64_t batch = at / r.tokens, token = at % r.tokens;
    const auto table = [=](const void* t, const int64_t (&strides)[3], int second) {
      return static_cast<const T*>(t) + batch * strides[0] + token * strides[1] +
             second * strides[2];
    };
    const Angles<T> by{{table(r.cos, r.cos_strides, 0), table(r.cos, r.cos_strides, 1)},
                       {table(r.sin, r.sin_strides, 0), table(r.sin, r.sin_strides, 1)}};
    for (const Heads& of : r.of) {
      for (int64_t head = 0; head < of.count; ++head) {
        const auto place = [=](const int64_t (&strides)[3]) {
          return batch * strides[0] + head * strides[1] + token * strides[2];
        };
        const X* const x = static_cast<const X*>(of.x) + place(of.x_strides);
        X* const y = static_cast<X*>(of.y) + place(of.y_strides);
        const auto row = r.interleaved ? rotate_neighbours<X, T> : rotate_halves<X, T>;
        row(x, y, by, r.pairs, r.back);
        std::memcpy(y + 2 * r.pairs, x + 2 * r.pairs, (r.d - 2 * r.pairs) * sizeof(X));
      }
    }
  }
}

constexpr Kernels kKernels = {
    {rotate<double, double>, rotate<float, float>, rotate<f16, f16>, rotate<bf16, bf16>},
    {nullptr, rotate<float, float>, rotate<f16, float>, rotate<bf16, float>}};

}  // namespace
}  // namespace fuseline::rope
