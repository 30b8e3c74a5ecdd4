// Softmaxes on the CPU around the row kernels: outputs, dtypes and threads.
#pragma once

#include "fuseline/core/cpp/norm_args.h"
#include "fuseline/rows_cpu.h"
#include "fuseline/softmax_rows.h"

namespace fuseline::softmax {

// An exponential takes a thread about as long as so many of the elements that `parallel` counts.
constexpr int64_t kExponential = 4;

// Makes y and fills `stats`, if there is a place for them.
inline Tensor forward(const Kernels& kernels, const Tensor& x, const Tensor* stats = nullptr) {
  Tensor y = allocate_like(x);
  const Rows in = rows_of(x);
  if (in.n == 0 && !stats) return y;  // any number of empty rows
  const ForwardArgs args{in.data(), y.mutable_data_ptr(),
                         stats ? stats->mutable_data_ptr() : nullptr, in.n, in.stride};
  const auto rows = kernels.forward[static_cast<int>(element_of(x))];
  parallel(in.rows, kExponential * in.n,
           [&](int64_t first, int64_t last) { rows(args, first, last); });
  return y;
}

// Makes dx; `saved` is y or, where there are stats, x.
inline Tensor gradient(const Kernels& kernels, const Tensor& dy, const Tensor& saved,
                       const Tensor* stats = nullptr) {
  Tensor dx = allocate_like(saved);
  const Rows dys = rows_of(dy), in = rows_of(saved);
  const GradientArgs args{
      dys.data(), in.data(), stats ? stats->const_data_ptr() : nullptr, dx.mutable_data_ptr(), in.n,
      dys.stride, in.stride};
  const auto rows = kernels.gradient[static_cast<int>(element_of(saved))];
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return dx;
}

}  // namespace fuseline::softmax
