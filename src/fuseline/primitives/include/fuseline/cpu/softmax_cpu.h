// Softmaxes on the CPU around the row kernels: outputs, dtypes and threads.
#pragma once

#include "fuseline/core/cpp/norm_args.h"
#include "fuseline/cpu/rows_cpu.h"
#include "fuseline/cpu/softmax_rows.h"

namespace fuseline::softmax {

// An exponential takes a thread about as long as so many of the elements that `parallel` counts.
constexpr int64_t kExponential = 4;

// kernel(first, last) over the rows or blocks of columns of a view, whose elements take a thread so
// many of those that `parallel` counts.
template <class F>
void each(const Columns& view, int64_t cost, const F& kernel) {
  const int64_t blocks = std::max<int64_t>(1, view.inner / kColumns);
  parallel(view.outer * blocks, cost * view.n * (view.inner / blocks), kernel);
}

// Rows of one element are one row of columns, which come a vector at a time, of a copy where they
// do not follow each other: each on its own took up to eight times as long as torch's.
template <class... Views>
void side_by_side(Columns& view, Views&... more) {
  if (view.n != 1 || view.inner != 1) return;
  const auto turn = [](Columns& v) {
    const Tensor side = v.stride == 1 ? v.tensor : counted_contiguous(v.tensor);
    v = {side, 1, 1, v.outer, v.outer, v.outer};
  };
  turn(view);
  (turn(more), ...);
}

// columns_of(t, dim), of a contiguous tensor with a quarter of its questions to torch, which a call
// of few elements waits for.
inline Columns view_of(const Tensor& t, int64_t dim) {
  if (!t.is_contiguous()) return columns_of(t, dim);
  const auto sizes = t.sizes();
  const auto count = [&](int64_t first, int64_t last) {
    int64_t elements = 1;
    for (int64_t d = first; d < last; ++d) elements *= sizes[d];
    return elements;
  };
  const int64_t n = sizes[dim], inner = count(dim + 1, static_cast<int64_t>(sizes.size()));
  return {t, count(0, dim), n, inner, n * inner, inner};
}

// Makes y and fills `stats`, if the pointer is not null.
inline Tensor forward(const Kernels& kernels, const Tensor& x, int64_t dim,
                      const Tensor* stats = nullptr) {
  Tensor y = allocate_like(x);
  Columns in = view_of(x, dim);
  side_by_side(in);
  if (in.inner == 0 || (in.n == 0 && !stats)) return y;  // any number of empty rows
  const ForwardArgs args{in.data(),
                         y.mutable_data_ptr(),
                         stats ? stats->mutable_data_ptr() : nullptr,
                         in.n,
                         in.inner,
                         in.stride,
                         in.step};
  const int element = static_cast<int>(element_of(x));
  const auto kernel = in.inner == 1 ? kernels.rows[element] : kernels.columns[element];
  each(in, kExponential, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  return y;
}

// Makes dx; `saved` is y or, where there are stats, x. `cost` is that of an element.
inline Tensor gradient(const Kernels& kernels, int64_t cost, const Tensor& dy, const Tensor& saved,
                       int64_t dim, const Tensor* stats = nullptr) {
  Tensor dx = allocate_like(saved);
  Columns dys = view_of(dy, dim), in = view_of(saved, dim);
  side_by_side(dys, in);
  if (in.inner == 0) return dx;
  const GradientArgs args{dys.data(),
                          in.data(),
                          stats ? stats->const_data_ptr() : nullptr,
                          dx.mutable_data_ptr(),
                          in.n,
                          in.inner,
                          dys.stride,
                          dys.step,
                          in.stride,
                          in.step};
  const int element = static_cast<int>(element_of(saved));
  const auto kernel =
      in.inner == 1 ? kernels.rows_gradient[element] : kernels.columns_gradient[element];
  each(in, cost, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  return dx;
}

}  // namespace fuseline::softmax
