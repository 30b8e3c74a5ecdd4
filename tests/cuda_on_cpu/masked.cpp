// masked_softmax and its gradient, by every kernel that a GPU may run of them.
#include "by_blocks.h"
#include "by_kernel.h"
#include "ops/masked_softmax/impl_cuda_rows.cuh"

namespace {

namespace masked = fuseline::masked_softmax;

// As it is launched, or by: clusters of four blocks, read again by a block, blocks that share rows.
enum Way { kUsual, kClusters, kAgain, kShared };

template <bool WHOLE, typename Op>
void by_clusters(const Op& op, const rows::ArgsOf<Op>& a) {
  constexpr int VEC = rows::kRowVec<typename Op::T>, THREADS = 128, SIZE = 4;
  using Shape = rows::Shape<VEC, 32 / VEC, true, THREADS, 1, false, WHOLE>;
  const int slice = static_cast<int>(ceil_div(ceil_div(a.n, VEC), SIZE) * VEC);
  const auto kernel = rows::row_cluster_kernel<Op, Shape>;
  emulator::together(kernel, a.rows * SIZE, SIZE, THREADS, a, op, slice);
}

template <typename Op>
void launch(const Op& op, const rows::ArgsOf<Op>& a, Way way, const Sharing& by) {
  if (way == kUsual) return Usual::launch(a, op);
  if (way == kShared) return share(op, a, by);
  if (way == kAgain) return rows::launch_again<128>(a, op, nullptr);
  if_whole(op, a, [&](auto whole) { by_clusters<decltype(whole)::value>(op, a); });
}

// `lead` dimensions before the columns, in which the mask has these strides.
template <typename T>
void forward(const T* x, const void* mask, T* y, const int64_t* sizes, const int64_t* strides,
             int64_t lead, int64_t last, int64_t is_float, int64_t rows, int64_t n, int64_t stride,
             int64_t queries, double scale, int64_t log, int64_t way, const Sharing& by) {
  masked::Forward<T> op{};
  op.mask.data = mask, op.mask.is_float = is_float, op.mask.last = last;
  if (mask && !op.mask.place(sizes, strides, lead)) std::abort();
  op.causal = masked::Causal(queries), op.scale = scale, op.log = log;
  launch(op, {{x}, {stride}, {y}, rows, n}, static_cast<Way>(way), by);
}

template <typename T>
void backward(const T* dy, const T* y, T* dx, int64_t rows, int64_t n, int64_t stride,
              int64_t queries, double scale, int64_t log, int64_t way, const Sharing& by) {
  masked::Backward<T> op{};
  op.causal = masked::Causal(queries), op.scale = scale, op.log = log;
  launch(op, {{dy, y}, {stride, n}, {dx}, rows, n}, static_cast<Way>(way), by);
}

}  // namespace

// What MaskRows has of dimensions: how many it keeps, or -1, and the element of row `index`.
extern "C" int64_t mask_place(const int64_t* sizes, const int64_t* strides, int64_t lead,
                              int64_t index, int64_t* at) {
  masked::MaskRows rows;
  if (!rows.place(sizes, strides, lead)) return -1;
  *at = rows.row(index);
  return rows.dims;
}

// The quotient, and the rest.
extern "C" int64_t divide(int64_t number, int64_t by, int64_t* rest) {
  *rest = masked::Divisor(by).take(number);
  return number;
}

#define EXPORT(name, T)                                                                          \
  extern "C" void forward_##name(                                                                \
      const T* x, const void* mask, T* y, const int64_t* sizes, const int64_t* strides,          \
      int64_t lead, int64_t last, int64_t is_float, int64_t rows, int64_t n, int64_t stride,     \
      int64_t queries, double scale, int64_t log, int64_t way, int64_t how, int64_t pieces,      \
      int64_t each, int64_t groups, int64_t backwards) {                                         \
    emulator::backwards = backwards;                                                             \
    forward(x, mask, y, sizes, strides, lead, last, is_float, rows, n, stride, queries, scale,   \
            log, way, {how, pieces, each, groups});                                              \
  }                                                                                              \
  extern "C" void backward_##name(const T* dy, const T* y, T* dx, int64_t rows, int64_t n,       \
                                  int64_t stride, int64_t queries, double scale, int64_t log,    \
                                  int64_t way, int64_t how, int64_t pieces, int64_t each,        \
                                  int64_t groups, int64_t backwards) {                           \
    emulator::backwards = backwards;                                                             \
    backward(dy, y, dx, rows, n, stride, queries, scale, log, way, {how, pieces, each, groups}); \
  }
EXPORT(f32, float)
EXPORT(f64, double)
EXPORT(bf16, __nv_bfloat16)
