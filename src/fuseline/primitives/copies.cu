// Copies of the binary on a GPU that torch's copy_ takes long for: those that transpose.
#include "fuseline/core/cpp/cuda.h"
#include "fuseline/cuda/transpose.cuh"

namespace fuseline {
namespace {

template <typename T>
cudaError_t transpose(const Tensor& to, const Tensor& from, const Transposition& t) {
  return launch_transpose(static_cast<const T*>(from.const_data_ptr()),
                          static_cast<T*>(to.mutable_data_ptr()), t,
                          current_stream(device_of(to).index));
}

bool copied(const Tensor& to, const Tensor& from) {
  const auto t =
      transposition(to.sizes().data(), from.strides().data(), to.strides().data(), to.dim());
  const int64_t bytes = to.element_size();
  if (!t || (bytes != 2 && bytes != 4 && bytes != 8)) return false;
  const DeviceScope scope(device_of(to).index);
  FUSELINE_CUDA_CHECK(bytes == 2   ? transpose<uint16_t>(to, from, *t)
                      : bytes == 4 ? transpose<uint32_t>(to, from, *t)
                                   : transpose<uint64_t>(to, from, *t));
  return true;
}

[[maybe_unused]] const bool registered = (copy_on_cuda_by(&copied), true);

}  // namespace
}  // namespace fuseline
