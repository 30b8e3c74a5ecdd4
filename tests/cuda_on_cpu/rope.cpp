// Rotations of pairs, launched as on a GPU.
#include "emulator.h"
#include "ops/rope/impl_cuda_kernels.cuh"

namespace {

// Sizes: batches, tokens, heads of q and of k, pairs, columns behind them; steps of q, k and their
// results, 4 each, then of cos and sin, 4 each. Returns whether packs made the results, or -1.
template <typename T, typename C>
int64_t rotate(const void* q, const void* k, const void* cos, const void* sin, void* q_to,
               void* k_to, const int64_t* sizes, const int64_t* steps, int64_t interleaved,
               int64_t back, int64_t backwards) {
  emulator::backwards = backwards;
  fuseline::rope::Problem<T, C> a{};
  a.of[0].x = static_cast<const T*>(q);
  a.of[1].x = static_cast<const T*>(k);
  a.of[0].y = static_cast<T*>(q_to);
  a.of[1].y = static_cast<T*>(k_to);
  for (int i = 0; i < 2; ++i) {
    std::copy_n(steps + 4 * i, 4, a.of[i].x_steps);
    std::copy_n(steps + 8 + 4 * i, 4, a.of[i].y_steps);
  }
  a.tables.cos = static_cast<const C*>(cos);
  a.tables.sin = static_cast<const C*>(sin);
  std::copy_n(steps + 16, 4, a.tables.cos_steps);
  std::copy_n(steps + 20, 4, a.tables.sin_steps);
  a.both = a.tables.cos_steps[2] != 0;
  if (back) {
    a.tables.sin += a.tables.sin_steps[2];
    a.tables.sin_steps[2] = -a.tables.sin_steps[2];
  }
  unsigned* const to[] = {&a.batches, &a.tokens, &a.heads[0], &a.heads[1], &a.pairs, &a.rest};
  for (int i = 0; i < 6; ++i) *to[i] = static_cast<unsigned>(sizes[i]);
  a.back = back;
  if (fuseline::rope::launch(a, interleaved, nullptr) != cudaSuccess) return -1;
  return fuseline::rope::in_packs(a);
}

}  // namespace

#define EXPORT(name, T, C)                                                                         \
  extern "C" int64_t rotate_##name(const void* q, const void* k, const void* cos, const void* sin, \
                                   void* q_to, void* k_to, const int64_t* sizes,                   \
                                   const int64_t* steps, int64_t interleaved, int64_t back,        \
                                   int64_t backwards) {                                            \
    return rotate<T, C>(q, k, cos, sin, q_to, k_to, sizes, steps, interleaved, back, backwards);   \
  }
EXPORT(f32, float, float)
EXPORT(f64, double, double)
EXPORT(f16, __half, __half)
EXPORT(bf16, __nv_bfloat16, __nv_bfloat16)
EXPORT(f16_f32, __half, float)
EXPORT(bf16_f32, __nv_bfloat16, float)
