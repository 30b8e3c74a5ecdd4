// Rotations of pairs, for the instruction set the including file is built for. Everything is in an
// unnamed namespace: what the linker merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_sums.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::rope {
namespace {

// One row; element i of a pair lies with i + pairs.
template <class X, class T>
void rotate_halves(const X* x, X* y, const T* cos, const T* sin, int64_t pairs, bool back) {
  using C = Compute<X>;
  each_vector<C>(pairs, [=](int64_t i, auto part) {
    const Vector<C> first = load<C>(x + i, part), second = load<C>(x + pairs + i, part);
    const Vector<C> c = load<C>(cos + i, part), s = load<C>(sin + i, part);
    const Vector<C> turned = back ? -s : s;
    store<C>(y + i, fused<C>(first, c, -(second * turned)), part);
    store<C>(y + pairs + i, fused<C>(second, c, first * turned), part);
  });
}

// One row; pairs are neighbours, which some at a time are taken apart.
template <class X, class T>
void rotate_neighbours(const X* x, X* y, const T* cos, const T* sin, int64_t pairs, bool back) {
  using C = Compute<X>;
  constexpr int64_t kPairs = 64;
  C values[2 * kPairs], c[kPairs], s[kPairs];
  for (int64_t begin = 0; begin < pairs; begin += kPairs) {
    const int64_t count = pairs - begin < kPairs ? pairs - begin : kPairs;
    const auto take = [](const auto* from, int64_t n, C* to) {
      each_vector<C>(
          n, [=](int64_t i, auto part) { store<C>(to + i, load<C>(from + i, part), part); });
    };
    take(x + 2 * begin, 2 * count, values);
    take(cos + begin, count, c);
    take(sin + begin, count, s);
    for (int64_t i = 0; i < count; ++i) {
      const C first = values[2 * i], second = values[2 * i + 1], turned = back ? -s[i] : s[i];
      values[2 * i] = __builtin_fma(first, c[i], -(second * turned));
      values[2 * i + 1] = __builtin_fma(second, c[i], first * turned);
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
    const auto table = [=](const void* t, const int64_t (&strides)[2]) {
      return static_cast<const T*>(t) + batch * strides[0] + token * strides[1];
    };
    const T* const cos = table(r.cos, r.cos_strides);
    const T* const sin = table(r.sin, r.sin_strides);
    for (const Heads& of : r.of) {
      for (int64_t head = 0; head < of.count; ++head) {
        const auto place = [=](const int64_t (&strides)[3]) {
          return batch * strides[0] + head * strides[1] + token * strides[2];
        };
        const X* const x = static_cast<const X*>(of.x) + place(of.x_strides);
        X* const y = static_cast<X*>(of.y) + place(of.y_strides);
        const auto row = r.interleaved ? rotate_neighbours<X, T> : rotate_halves<X, T>;
        row(x, y, cos, sin, r.pairs, r.back);
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
