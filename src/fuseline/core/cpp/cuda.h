// CUDA plumbing of the binary: torch's current stream without linking libtorch_cuda, launch checks.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>

#include <optional>

#include "tensor.h"

#define FUSELINE_CUDA_CHECK(expr)                                                                \
  do {                                                                                           \
    const cudaError_t fuseline_error = (expr);                                                   \
    STD_TORCH_CHECK(fuseline_error == cudaSuccess, "CUDA: ", cudaGetErrorString(fuseline_error), \
                    fuseline::remedy(fuseline_error));                                           \
  } while (0)

namespace fuseline {

inline const char* remedy(cudaError_t error) {
  switch (error) {
    case cudaErrorInsufficientDriver:
      return "; this binary carries the CUDA 13 runtime, which needs driver 580 or newer";
    case cudaErrorNoKernelImageForDevice:
      return "; rebuild with FUSELINE_CUDA_ARCHS set to this GPU's architecture";
    default:
      return "";
  }
}

// torch's libraries are loaded RTLD_LOCAL, so the symbol is looked up in the library itself; the
// same binary then loads beside a CPU-only torch, which has no libtorch_cuda.
inline cudaStream_t current_stream(int32_t device_index) {
  using Getter = AOTITorchError (*)(int32_t, void**);
  static const Getter getter = [] {
    void* lib = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    return lib ? reinterpret_cast<Getter>(dlsym(lib, "aoti_torch_get_current_cuda_stream"))
               : nullptr;
  }();
  STD_TORCH_CHECK(getter != nullptr, "CUDA: this torch has no libtorch_cuda.so");
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(getter(device_index, &stream));
  return static_cast<cudaStream_t>(stream);
}

// Makes `device` current for the scope; costs one look-up when it is already current. Torch's own
// guard does the rest: cudaSetDevice on the way back would make a context on a GPU nobody uses.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    int current = 0;
    FUSELINE_CUDA_CHECK(cudaGetDevice(&current));
    if (current != device) guard_.emplace(device);
  }

 private:
  std::optional<torch::stable::accelerator::DeviceGuard> guard_;
};

inline int sm_count(int device) {
  constexpr int kMaxDevices = 64;
  static int counts[kMaxDevices] = {};
  if (device < kMaxDevices && counts[device]) return counts[device];
  int count = 0;
  FUSELINE_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  if (device < kMaxDevices) counts[device] = count;
  return count;
}

}  // namespace fuseline
