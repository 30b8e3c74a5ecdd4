// Norms to e4m3 on the CPU around their row kernels: what is checked and allocated, and threads.
#pragma once

#include <cmath>

#include "fuseline/core/cpp/fp8_args.h"
#include "fuseline/cpu/fp8/norm_fp8.h"
#include "fuseline/cpu/rows_cpu.h"

namespace fuseline::fp8 {

struct Given {
  const Tensor& x;
  const Tensor* residual = nullptr;
  std::optional<Tensor> weight, bias;
  double eps;

  void check(const Fp8Args& args) {
    args.check_rows(x);
    if (residual) args.check_twin("residual", *residual, x);
    args.check_weight(weight, x);
    args.check_weight(bias, x, "bias");
  }
};

inline const float* floats(const std::optional<Tensor>& t) {
  return t ? static_cast<const float*>(t->const_data_ptr()) : nullptr;
}

// Runs the kernel of x's element; `args` says how there are scales.
inline void run(const Kernels& kernels, Given& given, Args args, const Tensor& y,
                const Tensor* new_residual = nullptr) {
  const fuseline::Rows in = rows_of(given.x);
  if (given.weight) given.weight = as(*given.weight, ScalarType::Float);
  if (given.bias) given.bias = as(*given.bias, ScalarType::Float);
  std::optional<fuseline::Rows> other;
  if (given.residual) {
    other = rows_of(*given.residual);
    args.residual = other->data();
    args.residual_stride = other->stride;
    args.new_residual = new_residual->mutable_data_ptr();
  }
  args.x = in.data();
  args.x_stride = in.stride;
  args.n = in.n;
  args.weight = floats(given.weight);
  args.bias = floats(given.bias);
  args.eps = given.eps;
  args.y = y.mutable_data_ptr();
  const auto rows = kernels.rows[static_cast<int>(element_of(given.x))];
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
}

// y by the scale that is given.
inline Tensor by_scale(const Fp8Args& args, const Kernels& kernels, Given given,
                       const Tensor& scale) {
  given.check(args);
  args.check_scale(scale, given.x);
  Tensor y = allocate_e4m3(given.x);
  float divisor = *static_cast<const float*>(scale.const_data_ptr());
  Args how{};
  how.scale = &divisor;
  run(kernels, given, how, y);
  return y;
}

// y and its scales; new_residual, with a residual, as well.
inline std::tuple<Tensor, Tensor> by_blocks(const Fp8Args& args, const Kernels& kernels,
                                            Given given, std::optional<int64_t> block,
                                            std::optional<double> scale_ub,
                                            Tensor* new_residual = nullptr) {
  given.check(args);
  args.check_options(block, scale_ub);
  Tensor y = allocate_e4m3(given.x), scale = allocate_scales(given.x, block);
  if (new_residual) *new_residual = allocate_like(given.x);
  Args how{};
  how.scale = static_cast<float*>(scale.mutable_data_ptr());
  how.blocks = scale.sizes()[scale.dim() - 1];
  if (how.blocks == 0) return {std::move(y), std::move(scale)};  // of empty rows
  how.block = block ? *block : given.x.sizes()[given.x.dim() - 1];
  how.scale_ub = static_cast<float>(scale_ub.value_or(HUGE_VAL));
  run(kernels, given, how, y, new_residual);
  return {std::move(y), std::move(scale)};
}

}  // namespace fuseline::fp8
