#include <cuda_runtime.h>
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>

#include <algorithm>
#include <tuple>

#include "rms_norm.cuh"
#include "tensors.h"

namespace rmsnorm {
namespace {

using Pair = std::tuple<Tensor, Tensor>;

// Looked up in torch's library, not linked: so this binary loads beside a torch without CUDA too.
cudaStream_t stream_of(const Tensor& x) {
  using Getter = AOTITorchError (*)(int32_t, void**);
  static const Getter get = [] {
    void* lib = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return lib ? reinterpret_cast<Getter>(dlsym(lib, "aoti_torch_get_current_cuda_stream"))
               : nullptr;
  }();
  STD_TORCH_CHECK(get != nullptr, "rmsnorm: this torch has no CUDA");
  void* stream = nullptr;
  STD_TORCH_CHECK(get(x.get_device_index(), &stream) == 0, "rmsnorm: no current stream");
  return static_cast<cudaStream_t>(stream);
}

void check_launch() {
  const cudaError_t error = cudaGetLastError();
  STD_TORCH_CHECK(error == cudaSuccess, "rmsnorm: ", cudaGetErrorString(error));
}

Pair forward(const Tensor& x_any, const Tensor& w_any, double eps) {
  const torch::stable::accelerator::DeviceGuard guard(x_any.get_device_index());
  const Tensor x = torch::stable::contiguous(x_any), w = torch::stable::contiguous(w_any);
  const int64_t n = w.numel(), rows = n ? x.numel() / n : 0;
  Tensor y = torch::stable::empty_like(x);
  Tensor rstd = torch::stable::new_empty(x, {rows}, compute_dtype(x));
  if (rows)
    by_dtype(x, [&](auto zero) {
      using T = decltype(zero);
      using C = typename Compute<T>::type;
      forward_kernel<T, C><<<rows, kThreads, 0, stream_of(x)>>>(
          static_cast<const T*>(x.const_data_ptr()), static_cast<const T*>(w.const_data_ptr()),
          static_cast<T*>(y.mutable_data_ptr()), static_cast<C*>(rstd.mutable_data_ptr()), n,
          static_cast<C>(eps));
      check_launch();
    });
  return {y, rstd};
}

Pair backward(const Tensor& dy_any, const Tensor& x_any, const Tensor& w_any, const Tensor& rstd) {
  const torch::stable::accelerator::DeviceGuard guard(x_any.get_device_index());
  const Tensor dy = torch::stable::contiguous(dy_any), x = torch::stable::contiguous(x_any),
               w = torch::stable::contiguous(w_any);
  const int64_t n = w.numel(), rows = rstd.numel(), blocks = std::min(rows, kBlocks);
  STD_TORCH_CHECK(n <= kMostColumns, "rmsnorm: rows of ", n, " elements, at most ", kMostColumns);
  Tensor dx = torch::stable::empty_like(x), dw = torch::stable::empty_like(w);
  if (!rows) return {dx, torch::stable::zero_(dw)};
  Tensor partial = torch::stable::new_empty(x, {blocks, n}, compute_dtype(x));
  by_dtype(x, [&](auto zero) {
    using T = decltype(zero);
    using C = typename Compute<T>::type;
    C* const sums = static_cast<C*>(partial.mutable_data_ptr());
    backward_kernel<T, C><<<blocks, kThreads, n * sizeof(C), stream_of(x)>>>(
        static_cast<const T*>(dy.const_data_ptr()), static_cast<const T*>(x.const_data_ptr()),
        static_cast<const T*>(w.const_data_ptr()), static_cast<const C*>(rstd.const_data_ptr()),
        static_cast<T*>(dx.mutable_data_ptr()), sums, rows, n);
    check_launch();
    sum_kernel<T, C><<<(n + kThreads - 1) / kThreads, kThreads, 0, stream_of(x)>>>(
        sums, static_cast<T*>(dw.mutable_data_ptr()), blocks, n);
    check_launch();
  });
  return {dx, dw};
}

}  // namespace
}  // namespace rmsnorm

STABLE_TORCH_LIBRARY_IMPL(rmsnorm_stable, CUDA, m) {
  m.impl("forward", TORCH_BOX(&rmsnorm::forward));
  m.impl("backward", TORCH_BOX(&rmsnorm::backward));
}
