// The CUDA kernels of the bias_gelu operators.
#include <tuple>

#include "fuseline/cuda/launch/cuda_rows.h"
#include "impl_args.h"
#include "impl_cuda_launch.cuh"

namespace fuseline::bias_gelu {
namespace {

// f(null pointer of the element type, the formula as a constant).
template <typename F>
void for_each_kind(const Tensor& x, const std::string& approximate, const F& f) {
  const bool tanh = is_tanh(approximate);
  for_dtype(x.scalar_type(), [&](auto* t) {
    if (tanh) return f(t, std::integral_constant<Formula, Formula::tanh>{});
    f(t, std::integral_constant<Formula, Formula::erf>{});
  });
}

template <typename T>
const T* elements(const Tensor& t) {
  return static_cast<const T*>(t.const_data_ptr());
}

Tensor forward(const Tensor& x, Tensor bias, std::string approximate) {
  check(x, bias);
  Tensor y = allocate_as(x);
  const Lines in = lines_of(x, y);
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  for_each_kind(x, approximate, [&](auto* type, auto formula) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (x.numel() == 0) return;
    ForwardOf<T> a{};
    a.x = static_cast<const T*>(in.data());
    a.bias = elements<T>(bias);
    a.y = static_cast<T*>(y.mutable_data_ptr());
    a.x_stride = in.stride;
    a.biases = in.biases;
    constexpr Formula F = decltype(formula)::value;
    FUSELINE_CUDA_CHECK(
        launch<F>(a, in.rows, in.n, sm_count(device.index), current_stream(device.index)));
  });
  return y;
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& x, Tensor bias,
                                    std::string approximate, bool need_dx, bool need_dbias) {
  check(dy, x, bias);
  Gradients grads(x, bias, need_dx, need_dbias);
  const Tensor& like = need_dx ? grads.dx : x;
  const Lines dys = lines_of(dy, like), xs = lines_of(x, like);
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  for_each_kind(x, approximate, [&](auto* type, auto formula) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (xs.n == 0 || !(need_dx || need_dbias)) return;
    BackwardOf<T> a{};
    a.dy = static_cast<const T*>(dys.data());
    a.x = static_cast<const T*>(xs.data());
    a.bias = elements<T>(bias);
    a.dx = need_dx ? static_cast<T*>(grads.dx.mutable_data_ptr()) : nullptr;
    a.dy_stride = dys.stride;
    a.x_stride = xs.stride;
    a.biases = xs.biases;
    a.parts = parts_of(a, xs.rows, xs.n, need_dbias, sm_count(device.index));
    T* const sums = need_dbias ? static_cast<T*>(grads.dbias.mutable_data_ptr()) : nullptr;
    const bool whole = sums_of(a, xs.rows, xs.n) == bias.numel() && std::is_same_v<T, Stat<T>>;
    const int64_t size = need_dbias && !whole ? sums_of(a, xs.rows, xs.n) : 0;
    const Tensor partial =
        allocate(IntHeaderOnlyArrayRef(&size, 1), stat_dtype(x.scalar_type()), device);
    if (need_dbias) a.partial = static_cast<Stat<T>*>(whole ? sums : partial.mutable_data_ptr());
    constexpr Formula F = decltype(formula)::value;
    FUSELINE_CUDA_CHECK(launch<F>(a, sums, xs.rows, xs.n, current_stream(device.index)));
  });
  return {grads.dx, grads.dbias};
}

}  // namespace
}  // namespace fuseline::bias_gelu

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu_bwd", TORCH_BOX(&fuseline::bias_gelu::backward));
}
