// The CUDA kernels of the pointwise_chain operators.
#include "fuseline/cuda/launch/cuda_rows.h"
#include "fuseline/cuda/pointwise/pointwise_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_formula.cuh"

namespace fuseline::pointwise_chain {
namespace {

// dx of dy and x or, of x alone, y.
template <typename... Inputs>
Tensor run(const Tensor& x, const Inputs&... inputs) {
  Tensor to = allocate_as(x);
  if (x.numel() == 0) return to;
  const DeviceScope scope(device_of(x).index);
  for_dtype(x.scalar_type(), [&](auto* type) {
    using Op = Chain<sizeof...(inputs) == 2, std::remove_pointer_t<decltype(type)>>;
    pointwise::run<Op>({pointwise::operand(inputs, to)...}, to);
  });
  return to;
}

Tensor forward(const Tensor& x) {
  kArgs.check_tensor(x);
  return run(x, x);
}

Tensor backward(const Tensor& dy, const Tensor& x) {
  kArgs.check_tensor(x);
  kArgs.check_twin("dy", dy, x);
  return run(x, dy, x);
}

}  // namespace
}  // namespace fuseline::pointwise_chain

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("pointwise_chain", TORCH_BOX(&fuseline::pointwise_chain::forward));
  m.impl("_pointwise_chain", TORCH_BOX(&fuseline::pointwise_chain::forward));
  m.impl("_pointwise_chain_bwd", TORCH_BOX(&fuseline::pointwise_chain::backward));
}
