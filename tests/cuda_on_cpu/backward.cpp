// The backward of layer_norm and of the root-mean-square norm, chosen and launched as on a GPU.
#include "emulator.h"
#include "fuseline/cuda/norm/backward/rms_cuda_launch_bwd.cuh"

using fuseline::Stat;
using namespace fuseline::rms;

namespace {

template <typename T, typename W, Kind KIND>
void run(BwdProblem p) {
  p.sms = emulator::kSms;
  std::vector<double> sums(bwd_sums_typed<T, W, KIND>(p));
  p.sums = sums.empty() ? nullptr : sums.data();
  p.parts = parts_typed<T, W, KIND>(p);
  std::vector<Stat<T>> partial(2 * p.parts * p.n, NAN);
  p.partial = partial.data();
  bwd_typed<T, W, KIND>(p);
}

}  // namespace

#define EXPORT(name, T, W, KIND)                                                             \
  extern "C" void name(const void* dy, const void* x, const void* weight, const void* mean,  \
                       const void* rstd, void* dx, void* dweight, void* dbias, int64_t rows, \
                       int64_t dy_stride, int64_t x_stride, int64_t n, int backwards) {      \
    BwdProblem p{};                                                                          \
    p.dy = dy, p.x = x, p.weight = weight, p.mean = mean, p.rstd = rstd;                     \
    p.dx = dx, p.dweight = dweight, p.dbias = dbias;                                         \
    p.rows = rows, p.dy_stride = dy_stride, p.x_stride = x_stride, p.n = n;                  \
    emulator::backwards = backwards;                                                         \
    run<T, W, KIND>(p);                                                                      \
  }
EXPORT(layer_norm_f32, float, float, Kind::kCentred)
EXPORT(layer_norm_f64, double, double, Kind::kCentred)
EXPORT(layer_norm_bf16, __nv_bfloat16, __nv_bfloat16, Kind::kCentred)
EXPORT(layer_norm_bf16_f32, __nv_bfloat16, float, Kind::kCentred)
EXPORT(rms_norm_f32, float, float, Kind::kPlain)
EXPORT(rms_norm_f64, double, double, Kind::kPlain)
EXPORT(rms_norm_bf16, __nv_bfloat16, __nv_bfloat16, Kind::kPlain)
