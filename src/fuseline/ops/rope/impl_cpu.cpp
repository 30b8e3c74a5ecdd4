// The CPU kernels of the rope operators.
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::rope {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

bool has_rows(const Tensor& t) {
  const int64_t last = t.dim() - 1;
  return t.sizes()[last] == 1 || t.strides()[last] == 1;
}

// `t`, or a copy whose rows are neighbours.
Tensor in_rows(const Tensor& t) { return has_rows(t) ? t : counted_contiguous(t); }

Heads heads_of(const Tensor& x, const Tensor& y) {
  Heads of{x.const_data_ptr(), y.mutable_data_ptr(), x.sizes()[1], {}, {}};
  std::copy_n(x.strides().data(), 3, of.x_strides);
  std::copy_n(y.strides().data(), 3, of.y_strides);
  return of;
}

const void* numbers_of(const Tensor& t, const Table& at) {
  return static_cast<const char*>(t.const_data_ptr()) +
         at.first * static_cast<int64_t>(t.element_size());
}

std::tuple<Tensor, Tensor> rotated(const Tensor& q, const Tensor& k, const Tensor& cos,
                                   const Tensor& sin, bool interleaved, bool back) {
  const Tensor xs[] = {in_rows(q), in_rows(k)};
  Tensor results[] = {allocate_as(q), allocate_as(k)}, ys[2];
  for (int i = 0; i < 2; ++i) ys[i] = has_rows(results[i]) ? results[i] : allocate_like(xs[i]);
  const Tensor tables[] = {in_rows(table_for(q, cos)), in_rows(table_for(q, sin))};
  const auto sizes = q.sizes();
  Rotation r{};
  for (int i = 0; i < 2; ++i) r.of[i] = heads_of(xs[i], ys[i]);
  const Table of_cos = table_of(tables[0], false), of_sin = table_of(tables[1], back);
  r.cos = numbers_of(tables[0], of_cos);
  r.sin = numbers_of(tables[1], of_sin);
  std::copy_n(of_cos.steps, 3, r.cos_strides);
  std::copy_n(of_sin.steps, 3, r.sin_strides);
  r.tokens = sizes[2];
  r.d = sizes[3];
  r.pairs = cos.sizes()[cos.dim() - 1];
  r.interleaved = interleaved;
  r.back = back;
  const bool same = tables[0].scalar_type() == q.scalar_type();
  const auto& by = same ? kernels().same : kernels().single;
  const Kernel kernel = by[static_cast<int>(element_of(q))];
  const int64_t each = (r.of[0].count + r.of[1].count) * r.d;  // elements of a token
  if (each > 0 && sizes[0] * sizes[2] > 0) {
    parallel(sizes[0] * sizes[2], each,
             [&](int64_t first, int64_t last) { kernel(r, first, last); });
  }
  for (int i = 0; i < 2; ++i) {
    if (!has_rows(results[i])) copy_into(results[i], ys[i]);
  }
  return {results[0], results[1]};
}

std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& cos,
                                   const Tensor& sin, bool interleaved) {
  check(q, k, cos, sin, kForward);
  return rotated(q, k, cos, sin, interleaved, false);
}

std::tuple<Tensor, Tensor> backward(const Tensor& dq, const Tensor& dk, const Tensor& cos,
                                    const Tensor& sin, bool interleaved) {
  check(dq, dk, cos, sin, kBackward);
  return rotated(dq, dk, cos, sin, interleaved, true);
}

}  // namespace
}  // namespace fuseline::rope

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)");
  m.def("_rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)");
  m.def(
      "_rope_bwd(Tensor dq, Tensor dk, Tensor cos, Tensor sin, bool interleaved) -> "
      "(Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("rope", TORCH_BOX(&fuseline::rope::forward));
  m.impl("_rope", TORCH_BOX(&fuseline::rope::forward));
  m.impl("_rope_bwd", TORCH_BOX(&fuseline::rope::backward));
}
