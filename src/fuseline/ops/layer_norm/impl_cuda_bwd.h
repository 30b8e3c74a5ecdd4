// layer_norm's backward on a GPU, which the operator and ATen's call.
#pragma once

#include <tuple>

#include "impl_args.h"

namespace fuseline::layer_norm {

std::tuple<Tensor, Tensor, Tensor> layer_norm_bwd(const Tensor& dy, const Tensor& x,
                                                  std::optional<Tensor> weight, Tensor mean,
                                                  Tensor rstd, bool need_dx, bool need_dweight,
                                                  bool need_dbias);

}  // namespace fuseline::layer_norm
