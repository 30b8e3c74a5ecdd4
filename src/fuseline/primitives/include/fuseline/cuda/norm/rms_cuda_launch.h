// The border between host code (rms_cuda.h) and the kernels, one translation unit per dtype of x.
#pragma once

#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <functional>

namespace fuseline::rms {

using e4m3 = __nv_fp8_e4m3;

enum class WeightType { kSame, kFloat };

// Of a backward: that of the root mean square; with something added to dx; layer norm's.
enum class Kind { kPlain, kAdds, kCentred };
constexpr Kind kind_of(bool adds) { return adds ? Kind::kAdds : Kind::kPlain; }

struct FwdProblem {
  const void* x;
  const void* residual;  // this and new_residual: where launch_fwd adds
  const void* weight;
  void* new_residual;
  void* y;
  void* rstd;
  int64_t rows;
  int64_t x_stride, x_step = 1;
  int64_t residual_stride, residual_step = 1;
  int64_t n;
  double eps;
  double weight_offset;
  const float* scale;                      // of a y in e4m3
  std::function<void*(int64_t)> allocate;  // bytes that the launch works in, or none
  WeightType weight_type;
  cudaStream_t stream;
};

struct BwdProblem {
  const void* dy;
  const void* added;  // to dx, of Kind::kAdds; may be null
  const void* x;
  const void* weight;
  const void* mean;  // of Kind::kCentred, as is dbias
  const void* rstd;
  void* dx;
  void* dweight;
  void* dbias;
  void* partial;
  int64_t rows;
  int64_t dy_stride;
  int64_t added_stride;
  int64_t x_stride;
  int64_t n;
  int64_t blocks;  // or groups of blocks that share rows
  int64_t parts;
  void* sums;  // exchanged by these or by kernels, where bwd_sums asks for them
  double weight_offset;
  WeightType weight_type;
  int sms;
  cudaStream_t stream;
};

// Launches on the current device and returns the launch's error. T is double, float, __half or
// __nv_bfloat16; each is instantiated in its own impl_cuda_<dtype>.cu. Y is T or, where nothing is
// added and T is not double, e4m3.
template <typename T, bool ADDS, typename Y = T>
cudaError_t launch_fwd(const FwdProblem& p);
template <typename T, Kind KIND>
cudaError_t launch_bwd(const BwdProblem& p);

// Sets p.blocks and returns the rows that launch_bwd needs in the partial buffer for each gradient
// of a parameter, which depend on the shape and the GPU.
template <typename T, Kind KIND>
int64_t bwd_parts(BwdProblem& p);

// How many sums of 8 bytes a launch exchanges through memory; most do not.
template <typename T, Kind KIND>
int64_t bwd_sums(const BwdProblem& p);

}  // namespace fuseline::rms
