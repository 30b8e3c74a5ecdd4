// bias_gelu, chosen and launched as on a GPU.
#include "emulator.h"
#include "ops/bias_gelu/impl_cuda_launch.cuh"

namespace {

using namespace fuseline;
using namespace fuseline::bias_gelu;

template <typename F>
void by_formula(int64_t tanh, int64_t backwards, const F& f) {
  emulator::backwards = backwards;
  if (tanh) return f(std::integral_constant<Formula, Formula::tanh>{});
  f(std::integral_constant<Formula, Formula::erf>{});
}

// Rows `stride` apart; 0 if they are left to the other kernels.
template <typename T>
int64_t tiles(const void* x, const void* bias, void* y, int64_t rows, int64_t n, int64_t stride,
              int64_t tanh, int64_t backwards) {
  bool done = false;
  by_formula(tanh, backwards, [&](auto formula) {
    ForwardOf<T> a{};
    a.x = static_cast<const T*>(x);
    a.bias = static_cast<const T*>(bias);
    a.y = static_cast<T*>(y);
    a.x_stride = stride;
    done = launch_tiles<decltype(formula)::value>(a, rows, n, emulator::kSms, nullptr);
  });
  return done;
}

// 1 where there are more axes than kernels have.
template <typename T>
int64_t forward(const void* x, const void* bias, void* y, const int64_t* sizes,
                const int64_t* x_strides, const int64_t* y_strides, int64_t dims, int64_t sms,
                int64_t tanh, int64_t backwards) {
  std::vector<int64_t> bias_strides(dims);
  bias_strides.back() = 1;
  const auto axes = axes_of<3>(sizes, {x_strides, bias_strides.data(), y_strides}, dims);
  if (!axes) return 1;
  by_formula(tanh, backwards, [&](auto formula) {
    pointwise::Problem<Gelu<decltype(formula)::value, T>> a{};
    a.in[0] = x;
    a.in[1] = bias;
    a.to[0] = static_cast<T*>(y);
    pointwise::launch(a, *axes, static_cast<int>(sms), nullptr);
  });
  return 0;
}

template <typename T>
int64_t backward(const void* dy, const void* x, const void* bias, void* dx, void* dbias,
                 const int64_t* sizes, const int64_t* dy_strides, const int64_t* x_strides,
                 const int64_t* dx_strides, int64_t dims, int64_t tanh, int64_t backwards) {
  const auto matrix = matrix_of(sizes, {dy_strides, x_strides, dx_strides}, dims);
  if (!matrix) return 1;
  const int64_t rows = matrix->rows, n = matrix->n;
  by_formula(tanh, backwards, [&](auto formula) {
    auto a = backward_of<T>(*matrix, {dy, x});
    a.bias = static_cast<const T*>(bias);
    a.dx = static_cast<T*>(dx);
    a.parts = parts_of(a, rows, n, dbias != nullptr, emulator::kSms);
    std::vector<Stat<T>> partial(dbias ? sums_of(a, rows, n) : 0, NAN);
    if (partial.empty()) {
      a.dbias = static_cast<T*>(dbias);
    } else {
      a.partial = partial.data();
    }
    launch<decltype(formula)::value>(a, static_cast<T*>(dbias), rows, n, nullptr);
  });
  return 0;
}

}  // namespace

#define EXPORT(name, T)                                                                            \
  extern "C" int64_t tiles_##name(const void* x, const void* bias, void* y, int64_t rows,          \
                                  int64_t n, int64_t stride, int64_t tanh, int64_t backwards) {    \
    return tiles<T>(x, bias, y, rows, n, stride, tanh, backwards);                                 \
  }                                                                                                \
  extern "C" int64_t forward_##name(                                                               \
      const void* x, const void* bias, void* y, const int64_t* sizes, const int64_t* x_strides,    \
      const int64_t* y_strides, int64_t dims, int64_t sms, int64_t tanh, int64_t backwards) {      \
    return forward<T>(x, bias, y, sizes, x_strides, y_strides, dims, sms, tanh, backwards);        \
  }                                                                                                \
  extern "C" int64_t backward_##name(const void* dy, const void* x, const void* bias, void* dx,    \
                                     void* dbias, const int64_t* sizes, const int64_t* dy_strides, \
                                     const int64_t* x_strides, const int64_t* dx_strides,          \
                                     int64_t dims, int64_t tanh, int64_t backwards) {              \
    return backward<T>(dy, x, bias, dx, dbias, sizes, dy_strides, x_strides, dx_strides, dims,     \
                       tanh, backwards);                                                           \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)
