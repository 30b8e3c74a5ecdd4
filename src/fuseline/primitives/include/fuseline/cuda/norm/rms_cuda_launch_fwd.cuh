// Launches the forward of the root-mean-square norm.
#pragma once

#include "fuseline/cuda/launch/row_launch.cuh"
#include "fuseline/cuda/norm/rms_cuda_rows.cuh"

namespace fuseline::rms {
namespace {

template <typename T, typename W, bool ADDS, typename Y>
cudaError_t fwd_typed(const FwdProblem& p) {
  Forward<T, W, ADDS, Y> op{};
  op.weight = static_cast<const W*>(p.weight);
  op.rstd_out = static_cast<Stat<T>*>(p.rstd);
  op.scale = p.scale;
  op.eps = p.eps;
  op.weight_offset = static_cast<Stat<T>>(p.weight_offset);
  op.inv_n = static_cast<Stat<T>>(1.0 / static_cast<double>(p.n));
  ArgsOf<decltype(op)> a{};
  a.in[0] = static_cast<const T*>(p.x), a.stride[0] = p.x_stride, a.gap[0] = p.x_step - 1;
  a.out.of[0] = static_cast<Y*>(p.y);
  if constexpr (ADDS) {
    a.in[1] = static_cast<const T*>(p.residual);
    a.stride[1] = p.residual_stride, a.gap[1] = p.residual_step - 1;
    a.out.of[1] = static_cast<T*>(p.new_residual);
  }
  a.rows = p.rows, a.n = p.n;
  const auto allocate = [&](int64_t bytes) { return p.allocate ? p.allocate(bytes) : nullptr; };
  return rows::launch(a, op, p.stream, allocate);
}

}  // namespace
}  // namespace fuseline::rms
