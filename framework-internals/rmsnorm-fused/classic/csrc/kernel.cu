#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "ops.h"
#include "rms_norm.cuh"

#define BY_DTYPE(x, ...) \
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "rmsnorm", __VA_ARGS__)

using rmsnorm::kThreads;

Pair forward_cuda(const torch::Tensor& x_any, const torch::Tensor& w_any, double eps) {
  const c10::cuda::CUDAGuard guard(x_any.device());
  const torch::Tensor x = x_any.contiguous(), w = w_any.contiguous();
  const int64_t n = w.numel(), rows = n ? x.numel() / n : 0;
  torch::Tensor y = torch::empty_like(x);
  torch::Tensor rstd = torch::empty({rows}, x.options().dtype(at::toOpMathType(x.scalar_type())));
  if (rows)
    BY_DTYPE(x, [&] {
      using C = at::opmath_type<scalar_t>;
      rmsnorm::forward_kernel<scalar_t, C>
          <<<rows, kThreads, 0, c10::cuda::getCurrentCUDAStream()>>>(
              x.const_data_ptr<scalar_t>(), w.const_data_ptr<scalar_t>(),
              y.mutable_data_ptr<scalar_t>(), rstd.mutable_data_ptr<C>(), n, static_cast<C>(eps));
      C10_CUDA_KERNEL_LAUNCH_CHECK();
    });
  return {y, rstd};
}

Pair backward_cuda(const torch::Tensor& dy_any, const torch::Tensor& x_any,
                   const torch::Tensor& w_any, const torch::Tensor& rstd) {
  const c10::cuda::CUDAGuard guard(x_any.device());
  const torch::Tensor dy = dy_any.contiguous(), x = x_any.contiguous(), w = w_any.contiguous();
  const int64_t n = w.numel(), rows = rstd.numel(), blocks = std::min(rows, rmsnorm::kBlocks);
  TORCH_CHECK(n <= rmsnorm::kMostColumns, "rmsnorm: rows of ", n, " elements, at most ",
              rmsnorm::kMostColumns);
  torch::Tensor dx = torch::empty_like(x), dw = torch::empty_like(w);
  torch::Tensor partial = torch::empty({blocks, n}, rstd.options());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  if (!rows) return {dx, dw.zero_()};
  BY_DTYPE(x, [&] {
    using C = at::opmath_type<scalar_t>;
    rmsnorm::backward_kernel<scalar_t, C><<<blocks, kThreads, n * sizeof(C), stream>>>(
        dy.const_data_ptr<scalar_t>(), x.const_data_ptr<scalar_t>(), w.const_data_ptr<scalar_t>(),
        rstd.const_data_ptr<C>(), dx.mutable_data_ptr<scalar_t>(), partial.mutable_data_ptr<C>(),
        rows, n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    rmsnorm::sum_kernel<scalar_t, C><<<(n + kThreads - 1) / kThreads, kThreads, 0, stream>>>(
        partial.const_data_ptr<C>(), dw.mutable_data_ptr<scalar_t>(), blocks, n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {dx, dw};
}
