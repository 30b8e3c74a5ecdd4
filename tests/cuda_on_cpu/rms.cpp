// The forward of the root-mean-square norm, of x or of x + residual, chosen and launched as on a
// GPU. Its backward is in backward.cpp.
#include "emulator.h"
#include "fuseline/cuda/norm/rms_cuda_launch_fwd.cuh"

using namespace fuseline::rms;

#define EXPORT(name, T, W)                                                                        \
  extern "C" void name(const void* x, const void* residual, const void* weight, void* h, void* y, \
                       void* rstd, int64_t rows, int64_t n, double eps, int backwards) {          \
    FwdProblem p{};                                                                               \
    p.x = x, p.residual = residual, p.weight = weight, p.new_residual = h;                        \
    p.y = y, p.rstd = rstd, p.rows = rows, p.n = n, p.eps = eps;                                  \
    p.x_stride = p.residual_stride = n;                                                           \
    emulator::backwards = backwards;                                                              \
    residual ? fwd_typed<T, W, true, T>(p) : fwd_typed<T, W, false, T>(p);                        \
  }
EXPORT(rms_f32, float, float)
EXPORT(rms_f64, double, double)
EXPORT(rms_bf16, __nv_bfloat16, __nv_bfloat16)
