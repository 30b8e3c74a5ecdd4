// The cross-entropy of rows and its gradient, launched as on a GPU.
#include "emulator.h"
#include "ops/cross_entropy/impl_cuda_total.cuh"

namespace {

using namespace fuseline;

struct Options {
  int64_t ignore_index;
  double smoothing, z_loss, softcap;
};

template <typename S>
cross_entropy::Problem<S> problem(const int64_t* target, const S* weight, S* stats,
                                  const Options& o) {
  const double inverse = o.softcap > 0 ? 1 / o.softcap : 0;
  return {target,      weight,       o.ignore_index, S(o.smoothing),
          S(o.z_loss), S(o.softcap), S(inverse),     stats};
}

// reduction: 0 none, 1 mean, 2 sum. Blocks' totals lie in `room`.
template <typename T, typename S>
void forward(const T* x, const int64_t* target, const S* weight, S* losses, S* stats, S* loss,
             double* total, void* room, int64_t rows, int64_t n, int64_t stride, int64_t reduction,
             const Options& o) {
  using Op = cross_entropy::Forward<T>;
  const Op op{{}, problem<S>(target, weight, stats, o), losses};
  cross_entropy::launch({{x}, {stride}, {}, rows, n}, op, nullptr);
  const cross_entropy::OfRows<S> of{losses, target, o.ignore_index};
  const cross_entropy::Totals<S> to{reduction ? loss : nullptr, total, reduction == 1, weight, n};
  cross_entropy::launch(of, rows, to, nullptr, [=](int64_t) { return room; });
}

template <typename T, typename S>
void backward(const T* x, const int64_t* target, const S* weight, S* stats, const S* dloss,
              const double* total, T* dx, int64_t rows, int64_t n, int64_t stride,
              int64_t reduction, const Options& o) {
  using Op = cross_entropy::Backward<T>;
  const Op op{
      {}, problem<S>(target, weight, stats, o), dloss, reduction == 0, total, reduction == 1, n};
  cross_entropy::launch({{x}, {stride}, {dx}, rows, n}, op, nullptr);
}

}  // namespace

#define EXPORT(name, T, S)                                                                         \
  extern "C" void forward_##name(                                                                  \
      const T* x, const int64_t* target, const S* weight, S* losses, S* stats, S* loss,            \
      double* total, void* room, int64_t rows, int64_t n, int64_t stride, int64_t reduction,       \
      int64_t ignore, double smoothing, double z_loss, double softcap, int64_t backwards) {        \
    emulator::backwards = backwards;                                                               \
    forward<T, S>(x, target, weight, losses, stats, loss, total, room, rows, n, stride, reduction, \
                  {ignore, smoothing, z_loss, softcap});                                           \
  }                                                                                                \
  extern "C" void backward_##name(                                                                 \
      const T* x, const int64_t* target, const S* weight, S* stats, const S* dloss,                \
      const double* total, T* dx, int64_t rows, int64_t n, int64_t stride, int64_t reduction,      \
      int64_t ignore, double smoothing, double z_loss, double softcap, int64_t backwards) {        \
    emulator::backwards = backwards;                                                               \
    backward<T, S>(x, target, weight, stats, dloss, total, dx, rows, n, stride, reduction,         \
                   {ignore, smoothing, z_loss, softcap});                                          \
  }
EXPORT(f32, float, float)
EXPORT(f64, double, double)
EXPORT(f16, __half, float)
EXPORT(bf16, __nv_bfloat16, float)
