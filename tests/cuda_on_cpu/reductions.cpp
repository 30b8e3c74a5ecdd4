// The horizontal reductions, chosen and launched as on a GPU: rows, and columns.
#include "columns.h"
#include "ops/horizontal_reduction_pointwise/impl_cuda_rows.cuh"
#include "ops/horizontal_reduction_reduction/impl_cuda_rows.cuh"

namespace {

namespace pointwise = fuseline::horizontal_reduction_pointwise;
namespace reduction = fuseline::horizontal_reduction_reduction;

using columns::of, columns::launch;

}  // namespace

#define EXPORT(name, T)                                                                      \
  extern "C" void sum_and_amax_##name(const T* x, T* sums, T* amax, int64_t rows, int64_t n, \
                                      int64_t stride, int64_t backwards) {                   \
    emulator::backwards = backwards;                                                         \
    reduction::Forward<T, false> op{};                                                       \
    op.sums = sums;                                                                          \
    op.amax = amax;                                                                          \
    fuseline::rows::launch({{x}, {stride}, {}, rows, n}, op, nullptr);                       \
  }
#define EXPORT_COLUMNS(name, T)                                                                  \
  extern "C" void columns_sum_and_amax_##name(const T* x, T* sums, T* amax, double* counts,      \
                                              int64_t outer, int64_t n, int64_t inner,           \
                                              int64_t gap, int64_t sms, int64_t backwards) {     \
    emulator::backwards = backwards;                                                             \
    reduction::Forward<T, true> op{};                                                            \
    op.sums = sums;                                                                              \
    op.amax = amax;                                                                              \
    op.counts = counts;                                                                          \
    launch(of<decltype(op)>(x, outer, n, inner, gap), op, sms);                                  \
  }                                                                                              \
  extern "C" void columns_sum_and_cos_##name(const T* x, T* sums, T* cos, int64_t outer,         \
                                             int64_t n, int64_t inner, int64_t gap, int64_t sms, \
                                             int64_t backwards) {                                \
    emulator::backwards = backwards;                                                             \
    pointwise::Forward<T> op{};                                                                  \
    op.sums = sums;                                                                              \
    auto a = of<decltype(op)>(x, outer, n, inner, gap);                                          \
    a.out.of[0] = cos;                                                                           \
    launch(a, op, sms);                                                                          \
  }
EXPORT_COLUMNS(f32, float)
EXPORT_COLUMNS(f64, double)
EXPORT_COLUMNS(bf16, __nv_bfloat16)
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)

// Of columns that lie in another order than their results.
extern "C" void placed_f32(const float* x, float* sums, float* amax, int64_t outer, int64_t n,
                           int64_t inner, const int64_t* sizes, const int64_t* steps) {
  reduction::Forward<float, false> op{};
  op.sums = sums;
  op.amax = amax;
  auto a = of<decltype(op)>(x, outer, n, inner, 0);
  a.places = {{static_cast<unsigned>(sizes[0]), static_cast<unsigned>(sizes[1])},
              {steps[0], steps[1], steps[2]}};
  launch(a, op, 132);
}
