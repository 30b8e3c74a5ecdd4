// The root-mean-square norm on the CPU around the row kernels: dtypes, threads, and the sum over
// chunks of rows.
#pragma once

#include <tuple>

#include "fuseline/core/cpp/norm_args.h"
#include "fuseline/cpu/rms_rows.h"
#include "fuseline/cpu/rows_cpu.h"

namespace fuseline::rms {

template <class Table>
auto pick(const Table& table, const Tensor& x, const std::optional<Tensor>& weight) {
  const Element e = element_of(x);
  return table[static_cast<int>(e)][static_cast<int>(weight ? element_of(*weight) : e)];
}

inline const void* data_or_null(const std::optional<Tensor>& t) {
  return t ? t->const_data_ptr() : nullptr;
}

// Writes y and rstd unless its pointer is null; with a residual, new_residual as well.
inline void forward(const Kernels& kernels, const Tensor& x, const Tensor* residual,
                    const std::optional<Tensor>& given, double eps, const Tensor* new_residual,
                    const Tensor& y, const Tensor* rstd, double weight_offset = 0) {
  const Rows in = rows_of(x);
  if (in.n == 0 && !rstd) return;  // any number of empty rows
  const std::optional<Tensor> weight = weight_for(x, given);
  ForwardArgs args{};
  args.x = in.data();
  args.weight = data_or_null(weight);
  args.y = y.mutable_data_ptr();
  args.rstd = rstd ? rstd->mutable_data_ptr() : nullptr;
  args.n = in.n;
  args.x_stride = in.stride;
  args.eps = eps;
  args.weight_offset = weight_offset;
  std::optional<Rows> other;
  if (residual) {
    other = rows_of(*residual);
    args.residual = other->data();
    args.residual_stride = other->stride;
    args.new_residual = new_residual->mutable_data_ptr();
  }
  const ForwardRows rows = pick(kernels.forward, x, weight);
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
}

// dx (plus `added`, if there is one) and dweight, each empty if not requested.
inline std::tuple<Tensor, Tensor> backward(const Kernels& kernels, const Tensor& dy,
                                           const std::optional<Tensor>& added, const Tensor& x,
                                           const std::optional<Tensor>& given, const Tensor& rstd,
                                           bool need_dx, bool need_dweight,
                                           double weight_offset = 0) {
  need_dweight = need_dweight && given;
  Tensor dx = need_dx ? allocate_like(x) : allocate_none(x);
  Tensor dweight = need_dweight ? allocate_like(*given) : allocate_none(x);
  if (!need_dx && !need_dweight) return {dx, dweight};
  const std::optional<Tensor> weight = weight_for(x, given);

  const Rows dys = rows_of(dy);
  const Rows xs = rows_of(x);
  std::optional<Rows> addends;
  if (added && need_dx) addends = rows_of(*added);
  const int64_t n = xs.n;
  const Chunks chunks(xs.rows);
  std::optional<Tensor> scratch;
  if (need_dweight) {
    const int64_t size = chunks.count * n;
    scratch = allocate(IntHeaderOnlyArrayRef(&size, 1), ScalarType::Double, device_of(x));
  }
  double* sums = scratch ? static_cast<double*>(scratch->mutable_data_ptr()) : nullptr;

  const BackwardArgs args{dys.data(),
                          addends ? addends->data() : nullptr,
                          xs.data(),
                          data_or_null(weight),
                          rstd.const_data_ptr(),
                          need_dx ? dx.mutable_data_ptr() : nullptr,
                          n,
                          dys.stride,
                          addends ? addends->stride : 0,
                          xs.stride,
                          weight_offset};
  const BackwardRows rows = pick(kernels.backward, x, weight);
  chunks.each(n, [&](int64_t c, int64_t first, int64_t last) {
    rows(args, first, last, sums ? sums + c * n : nullptr);
  });
  if (sums) {
    const ReduceColumns reduce = kernels.reduce[static_cast<int>(element_of(dweight))];
    void* out = dweight.mutable_data_ptr();
    parallel(n, chunks.count,
             [&](int64_t first, int64_t last) { reduce(sums, chunks.count, n, first, last, out); });
  }
  return {dx, dweight};
}

}  // namespace fuseline::rms
