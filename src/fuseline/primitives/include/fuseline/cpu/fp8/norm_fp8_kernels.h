// Norms over rows to e4m3, for the instruction set the including file is built for. Everything is
// in an unnamed namespace and uses no template of the standard library: what the linker merges
// could carry wider instructions than the processor has.
#pragma once

#include <cfloat>

#include "fuseline/cpu/fp8/norm_fp8.h"
#include "fuseline/cpu/row_tiles.h"

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

  // From column i on; computed in C.
  template <class C, class Part>
  Vector<float> values(int64_t i, Part part) const {
    constexpr int kTimes = static_cast<int>(sizeof(C) / sizeof(float));
    const auto x = load<float>(h + i, part);
    const auto w = weight ? load<float>(weight + i, part) : x;
    const auto b = bias ? load<float>(bias + i, part) : x;
    Vector<C> v[kTimes];
    for (int k = 0; k < kTimes; ++k) {
      v[k] = lanes_in<C>(x, k);
      if constexpr (kCentred) v[k] -= static_cast<C>(mean);
      v[k] *= static_cast<C>(rstd);
      if (weight) v[k] *= lanes_in<C>(w, k);
      if (kCentred && bias) v[k] += lanes_in<C>(b, k);
    }
    if constexpr (kTimes == 1) {
      return v[0];
    } else {
      return narrow(v[0], v[1]);
    }
  }

 private:
  template <class C>
  static Vector<C> lanes_in(const Vector<float>& v, int part) {
    if constexpr (sizeof(C) == sizeof(float)) {
      return v;
    } else {
      return widen<float>(v, part);
    }
  }
};

// The bits of |v|: as numbers are ordered, so are these, and those of a NaN are above all.
using Bits = Lanes<int32_t, kLanes<float>>;
inline Bits size_of(const Vector<float>& v) { return bit_cast<Bits>(v) & 0x7fffffff; }
inline Bits larger(const Bits& a, const Bits& b) { return a > b ? a : b; }

template <int N>
inline int32_t largest(const Lanes<int32_t, N>& v) {
  if constexpr (N == 1) {
    return v[0];
  } else {
    const auto a = half<int32_t, N>(v, 0), b = half<int32_t, N>(v, 1);
    return largest<N / 2>(a > b ? a : b);
  }
}

// Of a block with this largest |v|, or of as many blocks. NaN stays NaN.
template <class V>
inline V scale_of(const V& amax, float bound) {
  const V most = V{} + bound, least = V{} + FLT_MIN, scale = (amax > most ? most : amax) / 448;
  return scale < least ? least : scale;
}

// Reads a row, twice where it makes the scales. Writes y and these.
template <class C, class N>
void write(const N norm, const Args& args, int64_t row) {
  e4m3* const y = static_cast<e4m3*>(args.y) + row * args.n;
  // By value: what is stored as bytes could be anything that is read through a reference.
  const auto divide = [=](int64_t first, int64_t last, float scale) {
    each_vector<float>(first, first, last, [=](int64_t i, auto part) {
      store<float>(y + i, norm.template values<C>(i, part) / scale, part);
    });
  };
  if (args.blocks == 0) return divide(0, args.n, *args.scale);
  float* const scales = args.scale + row * args.blocks;
  for (int64_t k = 0; k < args.blocks; ++k) {
    const int64_t first = k * args.block, end = first + args.block;
    const int64_t last = end < args.n ? end : args.n;
    Bits most{};
    each_vector<float>(first, first, last, [&](int64_t i, auto part) {
      most = larger(size_of(fresh<float>(norm.template values<C>(i, part), part)), most);
    });
    const float amax = bit_cast<float>(largest<kLanes<float>>(most));
    scales[k] = scale_of(amax, args.scale_ub);
    divide(first, last, scales[k]);
  }
}

// The most columns by tiles; a row of them is one block.
constexpr int64_t kFew = 16;

// v of kLanes<double> rows of a tile from r on. In fp64, which does for any row.
template <bool kCentred, class X>
inline void normalise(const Args& args, const RowTile<X, kFew>& h, int64_t r,
                      RowTile<float, kFew>& to) {
  using V = Vector<double>;
  const int64_t n = args.n;
  const double columns = static_cast<double>(n);
  V mean{}, sum{}, squares{};
  if constexpr (kCentred) {
    for (int64_t i = 0; i < n; ++i) sum += load<double>(h.column(i) + r, Whole{});
    mean = sum / columns;
  }
  for (int64_t i = 0; i < n; ++i) {
    const V v = load<double>(h.column(i) + r, Whole{}) - mean;
    squares += v * v;
  }
  V rstd;
  for (int k = 0; k < kLanes<double>; ++k) {
    rstd[k] = 1 / __builtin_sqrt(squares[k] / columns + args.eps);
  }
  for (int64_t i = 0; i < n; ++i) {
    V v = (load<double>(h.column(i) + r, Whole{}) - mean) * rstd;
    if (args.weight) v *= static_cast<double>(args.weight[i]);
    if (kCentred && args.bias) v += static_cast<double>(args.bias[i]);
    store<double>(to.column(i) + r, v, Whole{});
  }
}

// Owns rows [first, last) of few elements, by tiles.
template <bool kCentred, class X>
void tiles(const Args& args, int64_t first, int64_t last) {
  const int64_t n = args.n;
  RowTile<X, kFew> h, added;
  RowTile<float, kFew> v;
  RowTile<e4m3, kFew> y;
  float scales[kTileRows] = {};
  each_tile(first, last, [&](int64_t row, int64_t count) {
    h.of(args.x, row, args.x_stride, count, n);
    if (args.residual) {
      added.of(args.residual, row, args.residual_stride, count, n);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t r = 0; r < count; r += kLanes<float>) {
          X* const sum = h.column(i) + r;
          store<float>(sum, load<float>(sum, Whole{}) + load<float>(added.column(i) + r, Whole{}),
                       Whole{});
        }
      }
      h.write(args.new_residual, row, count, n);
    }
    for (int64_t r = 0; r < count; r += kLanes<double>) normalise<kCentred>(args, h, r, v);
    for (int64_t r = 0; r < count; r += kLanes<float>) {
      Vector<float> scale = Vector<float>{} + (args.blocks ? 1.0f : *args.scale);
      if (args.blocks) {
        Bits most{};
        for (int64_t i = 0; i < n; ++i) {
          most = larger(size_of(load<float>(v.column(i) + r, Whole{})), most);
        }
        scale = scale_of(bit_cast<Vector<float>>(most), args.scale_ub);
        store<float>(scales + r, scale, Whole{});
      }
      for (int64_t i = 0; i < n; ++i) {
        store<float>(y.column(i) + r, load<float>(v.column(i) + r, Whole{}) / scale, Whole{});
      }
    }
    y.write(args.y, row, count, n);
    if (args.blocks) std::memcpy(args.scale + row, scales, count * sizeof(float));
  });
}

// Owns rows [first, last).
template <bool kCentred, class X>
void rows(const Args& args, int64_t first, int64_t last) {
  if (args.n <= kFew) return tiles<kCentred, X>(args, first, last);
  for (int64_t row = first; row < last; ++row) {
    const X* h = static_cast<const X*>(args.x) + row * args.x_stride;
    if (args.residual) {
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

template <bool kCentred>
constexpr Kernels kKernels = {
    {nullptr, rows<kCentred, float>, rows<kCentred, f16>, rows<kCentred, bf16>}};

}  // namespace
}  // namespace fuseline::fp8
