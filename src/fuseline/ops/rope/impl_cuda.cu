// The CUDA kernels of the rope operators.
#include "fuseline/cuda/launch/cuda_rows.h"
#include "impl_args.h"
#include "impl_cuda_kernels.cuh"

namespace fuseline::rope {
namespace {

template <typename T>
Heads<T> heads_of(const Tensor& x, const Tensor& y) {
  Heads<T> of{static_cast<const T*>(x.const_data_ptr()), static_cast<T*>(y.mutable_data_ptr())};
  std::copy_n(x.strides().data(), 4, of.x_steps);
  std::copy_n(y.strides().data(), 4, of.y_steps);
  return of;
}

template <typename C>
Tables<C> tables_of(const Tensor& cos, const Tensor& sin, bool back) {
  const Table of_cos = table_of(cos, false), of_sin = table_of(sin, back);
  Tables<C> of{static_cast<const C*>(cos.const_data_ptr()) + of_cos.first,
               static_cast<const C*>(sin.const_data_ptr()) + of_sin.first};
  std::copy_n(of_cos.steps, 4, of.cos_steps);
  std::copy_n(of_sin.steps, 4, of.sin_steps);
  return of;
}

// A size that kernels index by 32 bits.
unsigned counted(int64_t size) {
  STD_TORCH_CHECK(size <= 1 << 30, "rope: q has a size of ", size, ", expected at most 2^30");
  return static_cast<unsigned>(size);
}

template <typename T, typename C>
void rotate(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
            const Tensor& q_to, const Tensor& k_to, bool interleaved, bool back) {
  const auto sizes = q.sizes();
  Problem<T, C> a{};
  a.of[0] = heads_of<T>(q, q_to);
  a.of[1] = heads_of<T>(k, k_to);
  a.tables = tables_of<C>(cos, sin, back);
  a.both = cos.dim() == 4;
  a.heads[0] = counted(sizes[1]);
  a.heads[1] = counted(k.sizes()[1]);
  a.batches = counted(sizes[0]);
  a.tokens = counted(sizes[2]);
  a.pairs = counted(cos.sizes()[cos.dim() - 1]);
  a.rest = counted(sizes[3] - 2 * int64_t{a.pairs});
  a.back = back;
  const cudaError_t error = launch(a, interleaved, current_stream(device_of(q).index));
  STD_TORCH_CHECK(error != cudaErrorInvalidValue, "rope: q has shape ", to_string(sizes),
                  ", expected fewer tokens or heads: a grid has 2^31 blocks, a token 2^30 threads");
  FUSELINE_CUDA_CHECK(error);
}

std::tuple<Tensor, Tensor> rotated(const Tensor& q, const Tensor& k, const Tensor& cos,
                                   const Tensor& sin, bool interleaved, bool back) {
  const Tensor q_to = allocate_as(q), k_to = allocate_as(k);
  const DeviceScope scope(device_of(q).index);
  const Tensor c = table_for(q, cos), s = table_for(q, sin);
  for_dtype(q.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (c.scalar_type() == q.scalar_type()) {
      return rotate<T, T>(q, k, c, s, q_to, k_to, interleaved, back);
    }
    if constexpr (sizeof(T) == 2) rotate<T, float>(q, k, c, s, q_to, k_to, interleaved, back);
  });
  return {q_to, k_to};
}

std::tuple<Tensor, Tensor> forward(const Tensor& q, const Tensor& k, const Tensor& cos,
                                   const Tensor& sin, bool interleaved) {
  check(q, k, cos, sin, kForward);
  return rotated(q, k, cos, sin, interleaved, false);
}

std::tuple<Tensor, Tensor> backward(const Tensor& dq, const Tensor& dk, const Tensor& cos,
                                    const Tensor& sin, bool interleaved) {
  check(dq, dk, cos, sin, kBackward);
  return rotated(dq, dk, cos, sin, interleaved, true);
}

}  // namespace
}  // namespace fuseline::rope

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("rope", TORCH_BOX(&fuseline::rope::forward));
  m.impl("_rope", TORCH_BOX(&fuseline::rope::forward));
  m.impl("_rope_bwd", TORCH_BOX(&fuseline::rope::backward));
}
