// What every backend of layer_norm checks before it touches memory (raw torch.ops calls are
// public), and the gradients it allocates.
#pragma once

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::layer_norm {

constexpr NormArgs kArgs{"layer_norm"};

// `weight` and `bias` come back contiguous and of one type: x's or, of half types, fp32.
inline void check(const Tensor& x, std::optional<Tensor>& weight, std::optional<Tensor>& bias) {
  kArgs.check_rows(x);
  kArgs.check_weight(weight, x);
  kArgs.check_weight(bias, x, "bias");
  const ScalarType own = x.scalar_type();
  const auto other = [&](const std::optional<Tensor>& t) { return t && t->scalar_type() != own; };
  const bool wider = x.element_size() < sizeof(float) && (other(weight) || other(bias));
  const ScalarType dtype = wider ? ScalarType::Float : own;
  if (weight) weight = as(*weight, dtype);
  if (bias) bias = as(*bias, dtype);
}

// `weight`, `mean` and `rstd` come back contiguous.
inline void check(const Tensor& dy, const Tensor& x, std::optional<Tensor>& weight, Tensor& mean,
                  Tensor& rstd) {
  kArgs.check_rows(x);
  kArgs.check_twin("dy", dy, x);
  kArgs.check_weight(weight, x);
  kArgs.check_statistic("mean", mean, x);
  kArgs.check_statistic("rstd", rstd, x);
}

// dx, dweight and dbias, each empty if not requested. dbias has the dtype of the weight,
// or of the statistics where there is none: the bias itself is not there.
struct Gradients {
  Tensor dx, dweight, dbias;

  Gradients(const Tensor& x, const std::optional<Tensor>& weight, bool need_dx, bool need_dweight,
            bool need_dbias)
      : dx(need_dx ? allocate_like(x) : allocate_none(x)),
        dweight(need_dweight && weight ? allocate_like(*weight) : allocate_none(x)),
        dbias(need_dbias ? allocate_bias(x, weight) : allocate_none(x)) {}

 private:
  static Tensor allocate_bias(const Tensor& x, const std::optional<Tensor>& weight) {
    const int64_t n = x.sizes()[x.dim() - 1];
    return allocate(IntHeaderOnlyArrayRef(&n, 1),
                    weight ? weight->scalar_type() : stat_dtype(x.scalar_type()), device_of(x));
  }
};

}  // namespace fuseline::layer_norm
