// Rows that several blocks share, by clusters and by grids.
#include "by_blocks.h"
#include "fuseline/cuda/rows/softmax_cuda.cuh"
#include "impl_cuda_rows.cuh"
#include "ops/horizontal_reduction_reduction/impl_cuda_rows.cuh"
#include "ops/norm_chain/impl_cuda_rows.cuh"

namespace {

using namespace fuseline;
namespace reductions = horizontal_reduction_reduction;

template <typename Op, typename T>
void run(const Op& op, const T* in, const T* other, T* out, int64_t rows, int64_t n, int64_t stride,
         const Sharing& by, int64_t backwards) {
  emulator::backwards = backwards;
  rows::ArgsOf<Op> a{};
  const T* const inputs[] = {in, other};
  for (int k = 0; k < Op::INPUTS; ++k) a.in[k] = inputs[k], a.stride[k] = k ? n : stride;
  if constexpr (Op::OUTPUTS > 0) a.out.of[0] = out;
  a.rows = rows, a.n = n;
  share(op, a, by);
}

template <typename T>
auto counting(T* out, T* amax, double* counts) {
  reductions::Forward<T, true> op{};
  op.sums = out, op.amax = amax, op.counts = counts;
  return op;
}

}  // namespace

#define EXPORT(kind, name, T, ...)                                                             \
  extern "C" void kind##_##name(const T* in, const T* other, T* out, T* amax, double* counts,  \
                                int64_t rows, int64_t n, int64_t stride, int64_t how,          \
                                int64_t pieces, int64_t each, int64_t groups, int64_t order) { \
    run(__VA_ARGS__, in, other, out, rows, n, stride, {how, pieces, each, groups}, order);     \
  }
#define LAYER_NORM(T) \
  (layer_norm::Forward<T, T, false>{{}, other, nullptr, 1e-5, 1.0 / n, nullptr, nullptr})
#define EXPORT_ALL(name, T)                                      \
  EXPORT(softmax, name, T, (softmax::Softmax<T>{}))              \
  EXPORT(softmax_bwd, name, T, (softmax::SoftmaxBwd<T>{}))       \
  EXPORT(double_softmax, name, T, (softmax::DoubleSoftmax<T>{})) \
  EXPORT(norm_chain, name, T, (norm_chain::Forward<T>{}))        \
  EXPORT(layer_norm, name, T, LAYER_NORM(T))                     \
  EXPORT(sum_amax_count, name, T, (counting<T>(out, amax, counts)))
EXPORT_ALL(f32, float)
EXPORT_ALL(f64, double)
EXPORT_ALL(bf16, __nv_bfloat16)

// What is chosen for rows of n on a GPU: pieces, pieces of a block, columns of a piece, bytes of a
// block, blocks of a group, groups.
template <typename Op>
void plan(int64_t rows, int64_t n, int64_t sms, int64_t shared, int64_t* found) {
  auto plan = rows::GridPlan{rows::long_plan<Op>(n, static_cast<int>(sms)), 1, 1};
  if (plan.row.pieces > kMaxCluster) {
    plan = rows::grid_plan<typename Op::Again>(plan.row, rows, 2 * static_cast<int>(sms),
                                               static_cast<int>(shared));
  }
  const int64_t all[] = {plan.row.pieces, plan.row.each,
                         plan.row.piece,  plan.row.pitch * Op::INPUTS,
                         plan.size,       plan.groups};
  std::copy(std::begin(all), std::end(all), found);
}
extern "C" void plan_softmax_f32(int64_t* found, int64_t rows, int64_t n, int64_t sms,
                                 int64_t shared) {
  plan<softmax::Softmax<float>>(rows, n, sms, shared, found);
}
extern "C" void plan_softmax_bwd_bf16(int64_t* found, int64_t rows, int64_t n, int64_t sms,
                                      int64_t shared) {
  plan<softmax::SoftmaxBwd<__nv_bfloat16>>(rows, n, sms, shared, found);
}
