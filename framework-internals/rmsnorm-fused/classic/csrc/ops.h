#pragma once
#include <torch/types.h>

#include <tuple>

using Pair = std::tuple<torch::Tensor, torch::Tensor>;

Pair forward_cpu(const torch::Tensor& x, const torch::Tensor& w, double eps);
Pair backward_cpu(const torch::Tensor& dy, const torch::Tensor& x, const torch::Tensor& w,
                  const torch::Tensor& rstd);
Pair forward_cuda(const torch::Tensor& x, const torch::Tensor& w, double eps);
Pair backward_cuda(const torch::Tensor& dy, const torch::Tensor& x, const torch::Tensor& w,
                   const torch::Tensor& rstd);
