// The CUDA kernels of the layer_norm operators: the forward, and all of them registered.
#include <tuple>

#include "fuseline/cuda/launch/row_tensors.cuh"
#include "impl_args.h"
#include "impl_aten.h"
#include "impl_cuda_bwd.h"
#include "impl_cuda_rows.cuh"

namespace fuseline::layer_norm {
namespace {

const void* data_or_null(const std::optional<Tensor>& t) {
  return t ? t->const_data_ptr() : nullptr;
}

template <typename T, typename W, bool BOTH>
void run(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
         double eps, const Tensor& y, const Tensor* mean, const Tensor* rstd) {
  const auto place = [](const Tensor* t) {
    return t ? static_cast<Stat<T>*>(t->mutable_data_ptr()) : nullptr;
  };
  Forward<T, W, BOTH> op{};
  op.weight = static_cast<const W*>(data_or_null(weight));
  op.bias = static_cast<const W*>(data_or_null(bias));
  op.eps = eps;
  op.inv_n = 1.0 / static_cast<double>(x.sizes()[x.dim() - 1]);
  op.mean_out = place(mean);
  op.rstd_out = place(rstd);
  rows::run(op, y, x);
}

template <typename T, typename W, typename... Args>
void run(const Tensor& x, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
         const Args&... args) {
  constexpr bool TOLD = sizeof(T) < 8;  // rows of fp64 are all read as if they lay anywhere
  weight&& bias ? run<T, W, TOLD>(x, weight, bias, args...)
                : run<T, W, false>(x, weight, bias, args...);
}

Tensor forward(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias,
               double eps, const Tensor* mean, const Tensor* rstd) {
  check(x, weight, bias);
  Tensor y = allocate_like(x);
  for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    if constexpr (sizeof(T) < sizeof(float)) {
      const std::optional<Tensor>& parameter = weight ? weight : bias;
      if (parameter && parameter->scalar_type() == ScalarType::Float) {
        return run<T, float>(x, weight, bias, eps, y, mean, rstd);
      }
    }
    run<T, T>(x, weight, bias, eps, y, mean, rstd);
  });
  return y;
}

Tensor layer_norm(const Tensor& x, std::optional<Tensor> weight, std::optional<Tensor> bias,
                  double eps) {
  return forward(x, std::move(weight), std::move(bias), eps, nullptr, nullptr);
}

// allocate_statistic says what `ones` are.
std::tuple<Tensor, Tensor, Tensor> with_statistics(const Tensor& x, std::optional<Tensor> weight,
                                                   std::optional<Tensor> bias, double eps,
                                                   size_t ones) {
  kArgs.check_rows(x);
  Tensor mean = allocate_statistic(x, ones), rstd = allocate_statistic(x, ones);
  Tensor y = forward(x, std::move(weight), std::move(bias), eps, &mean, &rstd);
  return {y, mean, rstd};
}

std::tuple<Tensor, Tensor, Tensor> layer_norm_fwd(const Tensor& x, std::optional<Tensor> weight,
                                                  std::optional<Tensor> bias, double eps) {
  return with_statistics(x, std::move(weight), std::move(bias), eps, 0);
}

Takeover takeover = Aten<&with_statistics, &layer_norm_bwd>::takeover("CUDA");

}  // namespace
}  // namespace fuseline::layer_norm

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("layer_norm", TORCH_BOX(&fuseline::layer_norm::layer_norm));
  m.impl("_layer_norm", TORCH_BOX(&fuseline::layer_norm::layer_norm));
  m.impl("_layer_norm_fwd", TORCH_BOX(&fuseline::layer_norm::layer_norm_fwd));
  m.impl("_layer_norm_bwd", TORCH_BOX(&fuseline::layer_norm::layer_norm_bwd));
}
