// pointwise_chain, chosen and launched as on a GPU.
#include "emulator.h"
#include "fuseline/cuda/pointwise/pointwise_launch.cuh"
#include "ops/pointwise_chain/impl_cuda_formula.cuh"

namespace {

// 1 where there are more axes than kernels have.
template <typename Op>
int64_t run(const std::array<const void*, Op::INPUTS>& in, void* to, const int64_t* sizes,
            const int64_t* const (&strides)[Op::INPUTS + 1], int64_t dims, int64_t sms,
            int64_t most, int64_t backwards) {
  emulator::backwards = backwards;
  const auto axes = fuseline::axes_of<Op::INPUTS + 1>(sizes, strides, dims);
  if (!axes) return 1;
  fuseline::pointwise::Problem<Op> a{};
  for (int k = 0; k < Op::INPUTS; ++k) a.in[k] = static_cast<const typename Op::T*>(in[k]);
  a.to = static_cast<typename Op::T*>(to);
  fuseline::pointwise::launch(a, *axes, static_cast<int>(sms), nullptr, most);
  return 0;
}

}  // namespace

// Strides of a result are those of `to`; a piece has at most so many elements.
#define EXPORT(name, T)                                                                            \
  extern "C" int64_t forward_##name(const void* x, void* to, const int64_t* sizes,                 \
                                    const int64_t* x_strides, const int64_t* to_strides,           \
                                    int64_t dims, int64_t sms, int64_t most, int64_t backwards) {  \
    using Op = fuseline::pointwise_chain::Chain<false, T>;                                         \
    return run<Op>({x}, to, sizes, {x_strides, to_strides}, dims, sms, most, backwards);           \
  }                                                                                                \
  extern "C" int64_t backward_##name(const void* dy, const void* x, void* to,                      \
                                     const int64_t* sizes, const int64_t* dy_strides,              \
                                     const int64_t* x_strides, const int64_t* to_strides,          \
                                     int64_t dims, int64_t sms, int64_t most, int64_t backwards) { \
    using Op = fuseline::pointwise_chain::Chain<true, T>;                                          \
    return run<Op>({dy, x}, to, sizes, {dy_strides, x_strides, to_strides}, dims, sms, most,       \
                   backwards);                                                                     \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)
