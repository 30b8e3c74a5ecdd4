// The CPU kernels of the layer_norm operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_args.h"
#include "impl_aten.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::layer_norm {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

const void* data_or_null(const std::optional<Tensor>& t) {
  return t ? t->const_data_ptr() : nullptr;
}

int parameter_of(const std::optional<Tensor>& t) {
  const bool f32 = t && t->scalar_type() == ScalarType::Float;
  return static_cast<int>(f32 ? Parameter::f32 : Parameter::own);
}

// Writes mean and rstd where their pointers are not null.
Tensor forward(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias,
               double eps, const Tensor* mean, const Tensor* rstd) {
  Tensor y = allocate_like(x);
  const Rows in = rows_of(x);
  if (in.n == 0 && !mean) return y;  // any number of empty rows
  const ForwardArgs args{in.data(),
                         data_or_null(weight),
                         data_or_null(bias),
                         y.mutable_data_ptr(),
                         mean ? mean->mutable_data_ptr() : nullptr,
                         rstd ? rstd->mutable_data_ptr() : nullptr,
                         in.n,
                         in.stride,
                         eps};
  const int element = static_cast<int>(element_of(x));
  const auto rows = kernels().forward[element][parameter_of(weight ? weight : bias)];
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return y;
}

Tensor layer_norm(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias,
                  double eps) {
  check(x, weight, bias);
  return forward(x, weight, bias, eps, nullptr, nullptr);
}

// allocate_statistic says what `ones` are.
std::tuple<Tensor, Tensor, Tensor> with_statistics(const Tensor& x, std::optional<Tensor> weight,
                                                   std::optional<Tensor> bias, double eps,
                                                   size_t ones) {
  check(x, weight, bias);
  const Tensor mean = allocate_statistic(x, ones), rstd = allocate_statistic(x, ones);
  return {forward(x, weight, bias, eps, &mean, &rstd), mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_fwd(const Tensor& x, std::optional<Tensor> weight,
                                                  std::optional<Tensor> bias, double eps) {
  return with_statistics(x, std::move(weight), std::move(bias), eps, 0);
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_bwd(const Tensor& dy, const Tensor& x,
                                                  std::optional<Tensor> weight, Tensor mean,
                                                  Tensor rstd, bool need_dx, bool need_dweight,
                                                  bool need_dbias) {
  check(dy, x, weight, mean, rstd);
  need_dweight = need_dweight && weight;
  Gradients grads(x, weight, need_dx, need_dweight, need_dbias);
  weight = weight_for(x, weight);
  const Rows dys = rows_of(dy), xs = rows_of(x);
  const BackwardArgs args{dys.data(),
                          xs.data(),
                          data_or_null(weight),
                          mean.const_data_ptr(),
                          rstd.const_data_ptr(),
                          need_dx ? grads.dx.mutable_data_ptr() : nullptr,
                          xs.n,
                          dys.stride,
                          xs.stride};
  const Chunks chunks(xs.rows);
  const int64_t n = xs.n, size = chunks.count * n;
  std::optional<Tensor> scratch;
  if (need_dweight || need_dbias) {
    const int64_t all = size * (need_dweight + need_dbias);
    scratch = allocate(IntHeaderOnlyArrayRef(&all, 1), ScalarType::Double, device_of(x));
  }
  double* const sums = scratch ? static_cast<double*>(scratch->mutable_data_ptr()) : nullptr;
  double* const dweights = need_dweight ? sums : nullptr;
  double* const dbiases = need_dbias ? sums + (need_dweight ? size : 0) : nullptr;

  const auto rows = kernels().backward[static_cast<int>(element_of(x))][parameter_of(weight)];
  chunks.each(n, [&](int64_t c, int64_t first, int64_t last) {
    rows(args, first, last, dweights ? dweights + c * n : nullptr,
         dbiases ? dbiases + c * n : nullptr);
  });
  const auto finish = [&](double* of_chunks, const Tensor& out) {
    const auto columns = kernels().sum_chunks[static_cast<int>(element_of(out))];
    void* const to = out.mutable_data_ptr();
    parallel(n, chunks.count, [&](int64_t first, int64_t last) {
      columns(of_chunks, chunks.count, n, first, last, to);
    });
  };
  if (dweights) finish(dweights, grads.dweight);
  if (dbiases) finish(dbiases, grads.dbias);
  return {grads.dx, grads.dweight, grads.dbias};
}

Takeover takeover = Aten<&with_statistics, &layer_norm_bwd>::takeover("CPU");

}  // namespace
}  // namespace fuseline::layer_norm

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  m.def("_layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  m.def(
      "_layer_norm_fwd(Tensor x, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, "
      "Tensor)");
  m.def(
      "_layer_norm_bwd(Tensor dy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, bool "
      "need_dx, "
      "bool need_dweight, bool need_dbias) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("layer_norm", TORCH_BOX(&fuseline::layer_norm::layer_norm));
  m.impl("_layer_norm", TORCH_BOX(&fuseline::layer_norm::layer_norm));
  m.impl("_layer_norm_fwd", TORCH_BOX(&fuseline::layer_norm::layer_norm_fwd));
  m.impl("_layer_norm_bwd", TORCH_BOX(&fuseline::layer_norm::layer_norm_bwd));
}
