// Norms over rows to e4m3, for the instruction set the including file is built for. Everything is
// in an unnamed namespace and uses no template of the standard library: what the linker merges
// could carry wider instructions than the processor has.
#pragma once

#include <cfloat>

#include "fuseline/cpu/fp8/norm_fp8.h"
#include "fuseline/cpu/row_sums.h"

namespace fuseline::fp8 {
namespace {

// v = (h - mean) * rstd * weight + bias of one row, rounded to fp32, where mean is 0 unless
// kCentred. The statistics are fp64, which holds the square of every fp32.
template <bool kCentred, class X>
struct Norm {
  const X* h;
  const float *weight, *bias;
  double mean, rstd;

  Norm(const Args& args, const X* row)
      : h(row), weight(args.weight), bias(args.bias), mean(0), rstd(0) {
    const double n = static_cast<double>(args.n);
    if constexpr (kCentred) {
      mean = sum_row<double>(args.n,
                             [=](int64_t i, auto part) { return load<double>(row + i, part); }) /
             n;
    }
    const double middle = mean;
    const double sum = sum_row<double>(args.n, [=](int64_t i, auto part) {
      const Vector<double> v = load<double>(row + i, part) - middle;
      return v * v;
    });
    rstd = 1 / __builtin_sqrt(sum / n + args.eps);
  }

  // Whether fp32 keeps the bits of v.
  bool is_usual() const { return !kCentred && rstd >= FLT_MIN && rstd <= FLT_MAX; }

  // In C from column i on.
  template <class C, class Part>
  Vector<C> values(int64_t i, Part part) const {
    Vector<C> v = load<C>(h + i, part);
    if constexpr (kCentred) v -= static_cast<C>(mean);
    v *= static_cast<C>(rstd);
    if (weight) v *= load<C>(weight + i, part);
    if (kCentred && bias) v += load<C>(bias + i, part);
    return rounded<float, C>(v);
  }
};

// The largest of |v| over columns [first, last), NaN if one is NaN: as numbers are ordered, so are
// their bits, and those of a NaN are above all.
template <class C, class N>
float amax(const N& norm, int64_t first, int64_t last) {
  using Bits = std::conditional_t<sizeof(C) == sizeof(double), int64_t, int32_t>;
  constexpr Bits kNoSign = static_cast<Bits>(~(Bits{1} << (8 * sizeof(Bits) - 1)));
  using V = Lanes<Bits, kLanes<C>>;
  V most = {};
  each_vector<C>(first, first, last, [&](int64_t i, auto part) {
    const V bits = bit_cast<V>(fresh<C>(norm.template values<C>(i, part), part)) & (V{} + kNoSign);
    most = bits > most ? bits : most;
  });
  Bits largest = 0;
  for (int i = 0; i < kLanes<C>; ++i) largest = most[i] > largest ? most[i] : largest;
  return static_cast<float>(bit_cast<C>(largest));
}

inline float scale_of(float amax, float bound) {
  const float scale = (amax > bound ? bound : amax) / 448;
  return scale < FLT_MIN ? FLT_MIN : scale;  // NaN stays NaN
}

// Reads a row, twice where it makes the scales. Writes y and these.
template <class C, class N>
void write(const N& norm, const Args& args, int64_t row) {
  e4m3* const y = static_cast<e4m3*>(args.y) + row * args.n;
  const auto divide = [&](int64_t first, int64_t last, float scale) {
    each_vector<C>(first, first, last, [=, &norm](int64_t i, auto part) {
      store<C>(y + i, norm.template values<C>(i, part) / static_cast<C>(scale), part);
    });
  };
  if (args.blocks == 0) return divide(0, args.n, *args.scale);
  float* const scales = args.scale + row * args.blocks;
  for (int64_t k = 0; k < args.blocks; ++k) {
    const int64_t first = k * args.block, end = first + args.block;
    const int64_t last = end < args.n ? end : args.n;
    scales[k] = scale_of(amax<C>(norm, first, last), args.scale_ub);
    divide(first, last, scales[k]);
  }
}

// Owns rows [first, last).
template <bool kCentred, bool kAdds, class X>
void rows(const Args& args, int64_t first, int64_t last) {
  for (int64_t row = first; row < last; ++row) {
    const X* h = static_cast<const X*>(args.x) + row * args.x_stride;
    if constexpr (kAdds) {
      const X* const x = h;
      const X* const r = static_cast<const X*>(args.residual) + row * args.residual_stride;
      X* const sum = static_cast<X*>(args.new_residual) + row * args.n;
      each_vector<float>(args.n, [=](int64_t i, auto part) {
        store<float>(sum + i, load<float>(x + i, part) + load<float>(r + i, part), part);
      });
      h = sum;
    }
    const Norm<kCentred, X> norm(args, h);
    if (norm.is_usual()) {
      write<float>(norm, args, row);
    } else {
      write<double>(norm, args, row);
    }
  }
}

template <bool kCentred, bool kAdds>
constexpr Kernels kKernels = {{nullptr, rows<kCentred, kAdds, float>, rows<kCentred, kAdds, f16>,
                               rows<kCentred, kAdds, bf16>}};

}  // namespace
}  // namespace fuseline::fp8
