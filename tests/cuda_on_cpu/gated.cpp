// Gated operators, chosen and launched as on a GPU.
#include "elementwise.h"
#include "ops/geglu/impl_cuda_gelu.cuh"
#include "ops/swiglu/impl_cuda_silu.cuh"

namespace {

using fuseline::gated::Backward;
using fuseline::gated::Forward;
using pointwise::run;

template <typename G, typename T>
int64_t forward(const void* a, const void* b, void* y, const int64_t* sizes,
                const int64_t* a_strides, const int64_t* b_strides, const int64_t* y_strides,
                int64_t dims, int64_t sms, int64_t most, int64_t backwards) {
  return run<Forward<G, T>>({a, b}, {y}, sizes, {a_strides, b_strides, y_strides}, dims, sms, most,
                            backwards);
}

// da and db lie alike: each a run or, with gaps, in one tensor.
template <typename G, typename T>
int64_t backward(const void* a, const void* b, const void* dy, void* da, void* db,
                 const int64_t* sizes, const int64_t* a_strides, const int64_t* b_strides,
                 const int64_t* dy_strides, const int64_t* to_strides, int64_t dims, int64_t sms,
                 int64_t most, int64_t packed, int64_t backwards) {
  const auto by = [&](auto op) {
    return run<decltype(op)>({a, b, dy}, {da, db}, sizes,
                             {a_strides, b_strides, dy_strides, to_strides}, dims, sms, most,
                             backwards);
  };
  return packed ? by(Backward<G, true, T>{}) : by(Backward<G, false, T>{});
}

}  // namespace

#define EXPORT(gate, G, name, T)                                                                   \
  extern "C" int64_t gate##_forward_##name(                                                        \
      const void* a, const void* b, void* y, const int64_t* sizes, const int64_t* a_strides,       \
      const int64_t* b_strides, const int64_t* y_strides, int64_t dims, int64_t sms, int64_t most, \
      int64_t backwards) {                                                                         \
    return forward<G, T>(a, b, y, sizes, a_strides, b_strides, y_strides, dims, sms, most,         \
                         backwards);                                                               \
  }                                                                                                \
  extern "C" int64_t gate##_backward_##name(                                                       \
      const void* a, const void* b, const void* dy, void* da, void* db, const int64_t* sizes,      \
      const int64_t* a_strides, const int64_t* b_strides, const int64_t* dy_strides,               \
      const int64_t* to_strides, int64_t dims, int64_t sms, int64_t most, int64_t packed,          \
      int64_t backwards) {                                                                         \
    return backward<G, T>(a, b, dy, da, db, sizes, a_strides, b_strides, dy_strides, to_strides,   \
                          dims, sms, most, packed, backwards);                                     \
  }
#define EXPORT_GATE(gate, G)   \
  EXPORT(gate, G, f32, float)  \
  EXPORT(gate, G, f64, double) \
  EXPORT(gate, G, f16, __half) \
  EXPORT(gate, G, bf16, __nv_bfloat16)
EXPORT_GATE(swiglu, fuseline::swiglu::Silu)
EXPORT_GATE(geglu_tanh, fuseline::geglu::Gelu<fuseline::gelu::Formula::tanh>)
EXPORT_GATE(geglu_none, fuseline::geglu::Gelu<fuseline::gelu::Formula::erf>)
