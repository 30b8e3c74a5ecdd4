// The CUDA kernels of the pointwise_chain operators.
#include "fuseline/cuda/launch/cuda_rows.h"
#include "impl_args.h"
#include "impl_cuda_kernels.cuh"

namespace fuseline::pointwise_chain {
namespace {

// dy null: the forward.
template <bool BACKWARD>
void run(const Tensor* dy, const Tensor& x, const Tensor& to) {
  if (x.numel() == 0) return;
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  for_dtype(x.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto elements = [](const Tensor& t) { return static_cast<const T*>(t.const_data_ptr()); };
    const T* const of_y = dy ? elements(*dy) : nullptr;
    T* const out = static_cast<T*>(to.mutable_data_ptr());
    const auto stream = current_stream(device.index);
    FUSELINE_CUDA_CHECK(launch<BACKWARD>(of_y, elements(x), out, x.numel(), stream));
  });
}

Tensor forward(const Tensor& x) {
  kArgs.check_tensor(x);
  Tensor y = allocate_as(x);
  run<false>(nullptr, counted_as(x, y), y);
  return y;
}

Tensor backward(const Tensor& dy, const Tensor& x) {
  kArgs.check_tensor(x);
  kArgs.check_twin("dy", dy, x);
  Tensor dx = allocate_as(x);
  const Tensor of_y = counted_as(dy, dx);
  run<true>(&of_y, counted_as(x, dx), dx);
  return dx;
}

}  // namespace
}  // namespace fuseline::pointwise_chain

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("pointwise_chain", TORCH_BOX(&fuseline::pointwise_chain::forward));
  m.impl("_pointwise_chain", TORCH_BOX(&fuseline::pointwise_chain::forward));
  m.impl("_pointwise_chain_bwd", TORCH_BOX(&fuseline::pointwise_chain::backward));
}
