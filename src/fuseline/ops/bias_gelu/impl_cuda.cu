// The CUDA kernels of the bias_gelu operators.
#include <tuple>

#include "fuseline/activation_backward.h"
#include "fuseline/cuda/launch/cuda_rows.h"
#include "fuseline/cuda/pointwise/pointwise_tensors.cuh"
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

// False if it had better be left to the kernels of pointwise.cuh.
template <Formula F, typename T>
bool in_tiles(const Tensor& x, const Tensor& bias, const Tensor& y, const Device& device) {
  const auto stride = row_stride(x);
  if (!stride || !y.is_contiguous()) return false;
  ForwardOf<T> a{};
  a.x = elements<T>(x);
  a.bias = elements<T>(bias);
  a.y = static_cast<T*>(y.mutable_data_ptr());
  a.x_stride = *stride;
  const int64_t n = bias.numel();
  return launch_tiles<F>(a, x.numel() / n, n, sm_count(device.index), current_stream(device.index));
}

Tensor forward(const Tensor& x, Tensor bias, std::string approximate) {
  check(x, bias);
  Tensor y = allocate_as(x);
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  for_each_kind(x, approximate, [&](auto* type, auto formula) {
    using T = std::remove_pointer_t<decltype(type)>;
    constexpr Formula F = decltype(formula)::value;
    if (x.numel() == 0) return;
    if (!in_tiles<F, T>(x, bias, y, device)) {
      pointwise::run<Gelu<F, T>>({pointwise::operand(x, y), pointwise::along_last(bias, y)}, y);
    }
    FUSELINE_CUDA_CHECK(cudaGetLastError());
  });
  return y;
}

// dy and x as rows in the order of `like`, of their shape, or of their dimensions if that has gaps.
// Owns the copies of what kernels cannot read, or had better not.
class Inputs {
 public:
  Inputs(const Tensor& dy, const Tensor& x, const Tensor& like) : of_{dy, x} {
    const bool dense = is_dense(like);
    const int64_t* const sizes = x.sizes().data();
    int64_t own[kMaxDim];  // strides of a contiguous tensor
    for (int64_t d = x.dim() - 1, step = 1; d >= 0; step *= sizes[d--]) own[d] = step;
    const int64_t* const order = dense ? like.strides().data() : own;
    const auto steps = [&](int k) { return of_[k].strides().data(); };
    const auto copy = [&](Tensor& t) { t = dense ? counted_as(t, like) : counted_contiguous(t); };
    for (int k = 0; k < 2; ++k) {
      if (pointwise::is_copied(sizes, steps(k), order, x.dim())) copy(of_[k]);
    }
    auto found = matrix_of(sizes, {steps(0), steps(1), order}, x.dim());
    if (!found) {
      for (Tensor& t : of_) copy(t);
      found = matrix_of(sizes, {steps(0), steps(1), order}, x.dim());
    }
    matrix_ = *found;
  }

  const Matrix& matrix() const { return matrix_; }
  template <typename T>
  BackwardOf<T> arguments() const {
    return backward_of<T>(matrix_, {of_[0].const_data_ptr(), of_[1].const_data_ptr()});
  }

 private:
  Tensor of_[2];
  Matrix matrix_;
};

// f(null pointer of the element type, the formula of the gradient as a constant).
template <typename F>
void for_each_slope(const Tensor& x, Formula formula, const F& f) {
  for_dtype(x.scalar_type(), [&](auto* t) {
    if (formula == Formula::relu) return f(t, std::integral_constant<Formula, Formula::relu>{});
    if (formula == Formula::tanh) return f(t, std::integral_constant<Formula, Formula::tanh>{});
    f(t, std::integral_constant<Formula, Formula::erf>{});
  });
}

// dy times the formula's slope at x + bias, without a bias at x, and the sums of that over rows.
void write_gradients(Gradients& grads, const Tensor& dy, const Tensor& x, const Tensor* bias,
                     Formula formula, bool need_dx, bool need_dbias) {
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  const Inputs inputs(dy, x, need_dx ? grads.dx : x);
  const int64_t rows = inputs.matrix().rows, n = inputs.matrix().n;
  for_each_slope(x, formula, [&](auto* type, auto constant) {
    using T = std::remove_pointer_t<decltype(type)>;
    if (n == 0 || !(need_dx || need_dbias)) return;
    BackwardOf<T> a = inputs.arguments<T>();
    a.bias = bias ? elements<T>(*bias) : nullptr;
    a.dx = need_dx ? static_cast<T*>(grads.dx.mutable_data_ptr()) : nullptr;
    a.parts = parts_of(a, rows, n, need_dbias, sm_count(device.index));
    const int64_t size = need_dbias ? sums_of(a, rows, n) : 0;
    const Tensor partial =
        allocate(IntHeaderOnlyArrayRef(&size, 1), stat_dtype(x.scalar_type()), device);
    T* const dbias = need_dbias ? static_cast<T*>(grads.dbias.mutable_data_ptr()) : nullptr;
    if (size > 0) {
      a.partial = static_cast<Stat<T>*>(partial.mutable_data_ptr());
    } else {
      a.dbias = dbias;
    }
    constexpr Formula F = decltype(constant)::value;
    FUSELINE_CUDA_CHECK(launch<F>(a, dbias, rows, n, current_stream(device.index)));
  });
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& x, Tensor bias,
                                    std::string approximate, bool need_dx, bool need_dbias) {
  check(dy, x, bias);
  const Formula formula = is_tanh(approximate) ? Formula::tanh : Formula::erf;
  Gradients grads(x, bias.numel(), need_dx, need_dbias);
  write_gradients(grads, dy, x, &bias, formula, need_dx, need_dbias);
  return {grads.dx, grads.dbias};
}

}  // namespace

std::tuple<Tensor, Tensor> activation_backward(const Tensor& dy, const Tensor& x, std::string of,
                                               bool need_dbias) {
  kArgs.check_rows(x);
  kArgs.check_twin("dy", dy, x);
  const Formula formula = of == "relu" ? Formula::relu : is_tanh(of) ? Formula::tanh : Formula::erf;
  Gradients grads(x, x.sizes()[x.dim() - 1], true, need_dbias);
  write_gradients(grads, dy, x, nullptr, formula, true, need_dbias);
  return {grads.dx, grads.dbias};
}

}  // namespace fuseline::bias_gelu

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu_bwd", TORCH_BOX(&fuseline::bias_gelu::backward));
  m.impl("_activation_bwd", TORCH_BOX(&fuseline::bias_gelu::activation_backward));
}
