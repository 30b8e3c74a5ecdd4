// Memory that torch could not give, asked for again in a way that says so in torch's own words.
#include <dlfcn.h>

#include "tensor.h"

namespace fuseline {
namespace {

// at::TensorBase and c10::Device, as far as calls pass them: the first by address, since it has a
// destructor. All else of a signature is in its mangled name, so another ATen has no such symbol.
struct AtenTensor {
  void* impl;
  ~AtenTensor() {}
};
struct AtenDevice {
  int8_t type, index;
};

template <typename F>
F* function_of(const char* library, const char* symbol) {
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  return loaded ? reinterpret_cast<F*>(dlsym(loaded, symbol)) : nullptr;
}

}  // namespace

Tensor allocate_in_aten(IntHeaderOnlyArrayRef sizes, IntHeaderOnlyArrayRef strides,
                        ScalarType dtype, Device device) {
  using Sizes = IntHeaderOnlyArrayRef;
  using OnCpu = AtenTensor(Sizes, Sizes, ScalarType, bool pinned);
  using OnCuda = AtenTensor(Sizes, Sizes, ScalarType, std::optional<AtenDevice>);
  if (device.type == static_cast<int32_t>(DeviceType::CPU)) {
    const auto empty = function_of<OnCpu>(
        "libtorch_cpu.so",
        "_ZN2at6detail17empty_strided_cpuEN3c108ArrayRefIlEES3_NS1_10ScalarTypeEb");
    if (empty) {
      auto* const made = new AtenTensor(empty(sizes, strides, dtype, false));
      return Tensor(reinterpret_cast<AtenTensorHandle>(made));
    }
  } else if (device.type == static_cast<int32_t>(DeviceType::CUDA)) {
    const auto empty = function_of<OnCuda>(
        "libtorch_cuda.so",
        "_ZN2at6detail18empty_strided_cudaEN3c108ArrayRefIlEES3_NS1_10ScalarTypeE"
        "St8optionalINS1_6DeviceEE");
    if (empty) {
      const AtenDevice own{static_cast<int8_t>(device.type), static_cast<int8_t>(device.index)};
      auto* const made = new AtenTensor(empty(sizes, strides, dtype, own));
      return Tensor(reinterpret_cast<AtenTensorHandle>(made));
    }
  }
  STD_TORCH_CHECK(false, "out of memory: torch allocated no tensor of ", sizes.size(),
                  " dimensions on device type ", device.type);
}

}  // namespace fuseline
