// bias_gelu, chosen and launched as on a GPU.
#include "emulator.h"
#include "ops/bias_gelu/impl_cuda_launch.cuh"

namespace {

using namespace fuseline::bias_gelu;

template <typename F>
void by_formula(int64_t tanh, int64_t backwards, const F& f) {
  emulator::backwards = backwards;
  if (tanh) return f(std::integral_constant<Formula, Formula::tanh>{});
  f(std::integral_constant<Formula, Formula::erf>{});
}

template <typename T>
void forward(const void* x, const void* bias, void* y, int64_t rows, int64_t n, int64_t stride,
             int64_t biases, int64_t tanh, int64_t backwards) {
  by_formula(tanh, backwards, [&](auto formula) {
    ForwardOf<T> a{};
    a.x = static_cast<const T*>(x);
    a.bias = static_cast<const T*>(bias);
    a.y = static_cast<T*>(y);
    a.x_stride = stride;
    a.biases = biases;
    launch<decltype(formula)::value>(a, rows, n, emulator::kSms, nullptr);
  });
}

template <typename T>
void backward(const void* dy, const void* x, const void* bias, void* dx, void* dbias, int64_t rows,
              int64_t n, int64_t stride, int64_t biases, int64_t tanh, int64_t backwards) {
  by_formula(tanh, backwards, [&](auto formula) {
    BackwardOf<T> a{};
    a.dy = static_cast<const T*>(dy);
    a.x = static_cast<const T*>(x);
    a.bias = static_cast<const T*>(bias);
    a.dx = static_cast<T*>(dx);
    a.dy_stride = n;
    a.x_stride = stride;
    a.biases = biases;
    a.parts = parts_of(a, rows, n, dbias != nullptr, emulator::kSms);
    std::vector<fuseline::Stat<T>> partial(dbias ? sums_of(a, rows, n) : 0, NAN);
    if (dbias) a.partial = partial.data();
    launch<decltype(formula)::value>(a, static_cast<T*>(dbias), rows, n, nullptr);
  });
}

}  // namespace

// `biases` 0: one a column, else row r has that of r % biases.
#define EXPORT(name, T)                                                                      \
  extern "C" void forward_##name(const void* x, const void* bias, void* y, int64_t rows,     \
                                 int64_t n, int64_t stride, int64_t biases, int64_t tanh,    \
                                 int64_t backwards) {                                        \
    forward<T>(x, bias, y, rows, n, stride, biases, tanh, backwards);                        \
  }                                                                                          \
  extern "C" void backward_##name(const void* dy, const void* x, const void* bias, void* dx, \
                                  void* dbias, int64_t rows, int64_t n, int64_t stride,      \
                                  int64_t biases, int64_t tanh, int64_t backwards) {         \
    backward<T>(dy, x, bias, dx, dbias, rows, n, stride, biases, tanh, backwards);           \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)
