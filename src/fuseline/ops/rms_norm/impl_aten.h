// RMSNorm as ATen calls it (_fused_rms_norm and its backward): any number of normalised dimensions,
// eps of the statistics' type, rstd with a one in place of each, nothing added to the weight.
#pragma once

#include <limits>

#include "fuseline/core/cpp/aten.h"
#include "impl_args.h"

namespace fuseline::rms_norm {

// The two kernels of one backend, over the backend's own Fwd and Bwd.
template <auto Fwd, auto Bwd>
struct Aten {
  inline static std::atomic<int64_t> fwd_calls{0}, bwd_calls{0};

  static std::tuple<Tensor, Tensor> fwd(const Tensor& input, std::vector<int64_t> shape,
                                        std::optional<Tensor> weight, std::optional<double> eps) {
    weight = aten::present(std::move(weight));
    aten::check_normalized(kArgs.op, input, shape, weight);
    const size_t count = shape.size();
    const double least = input.scalar_type() == ScalarType::Double
                             ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
    Tensor rstd = input;
    Tensor y = Fwd(aten::joined(input, count), aten::joined(weight, count), eps.value_or(least), 0,
                   &rstd, count);
    fwd_calls.fetch_add(1, std::memory_order_relaxed);
    return {aten::like(y, input, count), rstd};
  }

  static std::tuple<Tensor, Tensor> bwd(const Tensor& dy, const Tensor& input,
                                        std::vector<int64_t> shape, const Tensor& rstd,
                                        std::optional<Tensor> weight, std::vector<bool> mask) {
    weight = aten::present(std::move(weight));
    aten::check_normalized(kArgs.op, input, shape, weight);
    kArgs.check_twin("grad_out", dy, input);
    const size_t count = shape.size();
    const bool need_dx = mask.at(0), need_dweight = mask.at(1) && weight;
    auto [dx, dweight] = Bwd(aten::joined(dy, count), aten::joined(input, count),
                             aten::joined(weight, count), rstd, need_dx, need_dweight, 0);
    bwd_calls.fetch_add(1, std::memory_order_relaxed);
    return {need_dx ? aten::like(dx, input, count) : aten::undefined(),
            need_dweight ? aten::like(dweight, *weight, count) : aten::undefined()};
  }
};

}  // namespace fuseline::rms_norm
