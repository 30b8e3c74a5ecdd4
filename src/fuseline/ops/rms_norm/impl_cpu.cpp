// The CPU kernels of the four rms_norm operators: outputs, threads and the sum over chunks of rows.
#include <algorithm>

#include "fuseline/ops/rms_norm/impl_args.h"
#include "fuseline/ops/rms_norm/impl_aten.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::rms_norm {
namespace {

// Elements a thread gets at least: ATen's own grain size.
constexpr int64_t kGrain = 32768;

Element element_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Double:
      return Element::f64;
    case ScalarType::Float:
      return Element::f32;
    case ScalarType::Half:
      return Element::f16;
    default:
      return Element::bf16;
  }
}

template <class Table>
auto pick(const Table& table, const Tensor& x, const std::optional<Tensor>& weight) {
  const Element e = element_of(x);
  return table[static_cast<int>(e)][static_cast<int>(weight ? element_of(*weight) : e)];
}

const void* data_or_null(const std::optional<Tensor>& t) {
  return t ? t->const_data_ptr() : nullptr;
}

// fn(first, last) over `items`, each of which has `elements`.
template <class F>
void parallel(int64_t items, int64_t elements, const F& fn) {
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements));
  if (items <= grain) return fn(0, items);
  torch::stable::parallel_for(0, items, grain, fn);
}

// Makes y and, where there is a place for it, rstd (allocate_rstd says what `ones` are).
Tensor forward(const Tensor& x, std::optional<Tensor> weight, double eps, Tensor* rstd,
               size_t ones = 0) {
  check_x_weight(x, weight);
  Tensor y = allocate_like(x);
  if (rstd) *rstd = allocate_rstd(x, ones);
  const Rows in = rows_of(x);
  if (in.n == 0 && !rstd) return y;  // any number of empty rows
  const ForwardArgs args{in.data(),
                         data_or_null(weight),
                         y.mutable_data_ptr(),
                         rstd ? rstd->mutable_data_ptr() : nullptr,
                         in.n,
                         in.stride,
                         eps};
  const ForwardRows rows = pick(kernels().forward, x, weight);
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return y;
}

Tensor rms_norm(const Tensor& x, std::optional<Tensor> weight, double eps) {
  return forward(x, std::move(weight), eps, nullptr);
}

std::tuple<Tensor, Tensor> rms_norm_fwd(const Tensor& x, std::optional<Tensor> weight, double eps) {
  Tensor rstd = x;
  Tensor y = forward(x, std::move(weight), eps, &rstd);
  return {y, rstd};
}

// Rows whose dweight one thread sums in one go. It depends on the shape alone, so that the result
// does not depend on the number of threads: 64 chunks feed as many threads, and at 256 rows a chunk
// the sums are 1 % of what is read. Chunks of one row made (64, 65536) fp32 twice as slow as of
// four (2 cores, 2026-11-20).
int64_t chunk_rows(int64_t rows) { return std::clamp<int64_t>((rows + 63) / 64, 4, 256); }

std::tuple<Tensor, Tensor> rms_norm_bwd(Tensor dy, Tensor x, std::optional<Tensor> weight,
                                        Tensor rstd, bool need_dx, bool need_dweight) {
  check_x_weight(x, weight);
  check_dy_rstd(dy, x, rstd);
  need_dweight = need_dweight && weight;
  Tensor dx = need_dx ? allocate_like(x) : allocate_none(x);
  Tensor dweight = need_dweight ? allocate_like(*weight) : allocate_none(x);
  if (!need_dx && !need_dweight) return {dx, dweight};

  const Rows dys = rows_of(dy);
  const Rows xs = rows_of(x);
  const int64_t n = xs.n;
  const int64_t chunk = chunk_rows(xs.rows);
  const int64_t chunks = std::max<int64_t>(1, (xs.rows + chunk - 1) / chunk);
  std::optional<Tensor> scratch;
  if (need_dweight) {
    const int64_t size = chunks * n;
    scratch = allocate(IntHeaderOnlyArrayRef(&size, 1), ScalarType::Double, device_of(x));
  }
  double* sums = scratch ? static_cast<double*>(scratch->mutable_data_ptr()) : nullptr;

  const BackwardArgs args{dys.data(),
                          xs.data(),
                          data_or_null(weight),
                          rstd.const_data_ptr(),
                          need_dx ? dx.mutable_data_ptr() : nullptr,
                          n,
                          dys.stride,
                          xs.stride};
  const BackwardRows rows = pick(kernels().backward, x, weight);
  parallel(chunks, chunk * n, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) {
      rows(args, c * chunk, std::min(xs.rows, (c + 1) * chunk), sums ? sums + c * n : nullptr);
    }
  });
  if (sums) {
    const ReduceColumns reduce = kernels().reduce[static_cast<int>(element_of(dweight))];
    void* out = dweight.mutable_data_ptr();
    parallel(n, chunks,
             [&](int64_t first, int64_t last) { reduce(sums, chunks, n, first, last, out); });
  }
  return {dx, dweight};
}

using OnCpu = Aten<&forward, &rms_norm_bwd>;
// ATen has no backward of its own for the CPU: its forward is differentiated operation by
// operation.
Takeover takeover("rms_norm", "CPU",
                  {{"_fused_rms_norm", TORCH_BOX(&OnCpu::fwd), &OnCpu::fwd_calls},
                   {"_fused_rms_norm_backward", TORCH_BOX(&OnCpu::bwd), &OnCpu::bwd_calls, true}});

}  // namespace
}  // namespace fuseline::rms_norm

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("rms_norm", TORCH_BOX(&fuseline::rms_norm::rms_norm));
  m.impl("_rms_norm", TORCH_BOX(&fuseline::rms_norm::rms_norm));
  m.impl("_rms_norm_fwd", TORCH_BOX(&fuseline::rms_norm::rms_norm_fwd));
  m.impl("_rms_norm_bwd", TORCH_BOX(&fuseline::rms_norm::rms_norm_bwd));
}
