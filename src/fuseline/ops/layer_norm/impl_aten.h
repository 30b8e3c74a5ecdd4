// Layer norm as ATen calls it (native_layer_norm and its backward): any number of normalised
// dimensions, mean and rstd with a one in place of each and, on a CPU, in the dtype of the
// parameters.
#pragma once

#include <tuple>

#include "fuseline/core/cpp/aten.h"
#include "impl_args.h"

namespace fuseline::layer_norm {

// Weight and bias have one dtype, that of x or, beside half types, float32. Without them: x's.
inline ScalarType parameter_dtype(const Tensor& x, const std::optional<Tensor>& weight,
                                  const std::optional<Tensor>& bias) {
  const ScalarType own = x.scalar_type();
  const Tensor& first = weight ? *weight : bias ? *bias : x;
  const ScalarType dtype = first.scalar_type();
  STD_TORCH_CHECK(dtype == own || (dtype == ScalarType::Float && own != ScalarType::Double),
                  kArgs.op, ": ", weight ? "weight" : "bias", " is ",
                  torch::headeronly::toString(dtype), ", expected the dtype of input",
                  own == ScalarType::Double ? "" : " or Float");
  STD_TORCH_CHECK(!bias || bias->scalar_type() == dtype, kArgs.op,
                  ": bias must have the dtype of weight");
  return dtype;
}

// ATen's mean and rstd are of the dtype that it adds in, but on a CPU of the parameters'.
inline ScalarType aten_statistics(const Tensor& x, ScalarType parameters) {
  const bool on_cpu = device_of(x).type == static_cast<int32_t>(DeviceType::CPU);
  return on_cpu ? parameters : stat_dtype(x.scalar_type());
}

// The kernels of one backend, over the backend's own Fwd and Bwd.
template <auto Fwd, auto Bwd>
struct Aten {
  inline static std::atomic<int64_t> fwd_calls{0}, bwd_calls{0};

  static Takeover takeover(const char* key) {
    return {"layer_norm",
            key,
            {{"native_layer_norm", TORCH_BOX(&fwd), &fwd_calls},
             {"native_layer_norm_backward", TORCH_BOX(&bwd), &bwd_calls}}};
  }

  static std::tuple<Tensor, Tensor, Tensor> fwd(const Tensor& input, std::vector<int64_t> shape,
                                                std::optional<Tensor> weight,
                                                std::optional<Tensor> bias, double eps) {
    weight = aten::present(std::move(weight));
    bias = aten::present(std::move(bias));
    aten::check_normalized(kArgs.op, input, shape, weight, bias);
    const ScalarType stats = aten_statistics(input, parameter_dtype(input, weight, bias));
    const size_t count = shape.size();
    auto [y, mean, rstd] = Fwd(aten::joined(input, count), aten::joined(weight, count),
                               aten::joined(bias, count), eps, count);
    fwd_calls.fetch_add(1, std::memory_order_relaxed);
    return {aten::like(y, input, count), as(mean, stats), as(rstd, stats)};
  }

  static std::tuple<Tensor, Tensor, Tensor> bwd(const Tensor& dy, const Tensor& input,
                                                std::vector<int64_t> shape, const Tensor& mean,
                                                const Tensor& rstd, std::optional<Tensor> weight,
                                                std::optional<Tensor> bias,
                                                std::vector<bool> mask) {
    weight = aten::present(std::move(weight));
    bias = aten::present(std::move(bias));
    aten::check_normalized(kArgs.op, input, shape, weight, bias);
    parameter_dtype(input, weight, bias);
    kArgs.check_twin("grad_out", dy, input);
    const size_t count = shape.size();
    const ScalarType stats = stat_dtype(input.scalar_type());
    const bool need_dx = mask.at(0);
    const bool need_dweight = mask.at(1) && weight, need_dbias = mask.at(2) && bias;
    auto [dx, dweight, dbias] =
        Bwd(aten::joined(dy, count), aten::joined(input, count), aten::joined(weight, count),
            as(mean, stats), as(rstd, stats), need_dx, need_dweight, need_dbias);
    bwd_calls.fetch_add(1, std::memory_order_relaxed);
    const auto like = [&](bool needed, const Tensor& t, const auto& original) {
      return needed ? aten::like(as(t, original->scalar_type()), *original, count)
                    : aten::undefined();
    };
    return {like(need_dx, dx, &input), like(need_dweight, dweight, weight),
            like(need_dbias, dbias, bias)};
  }
};

}  // namespace fuseline::layer_norm
