// Chooses kernel and block by row length and alignment only, so that a row's result does not
// depend on the batch. Included once per dtype of x.
#pragma once

#include "fuseline/rms_cuda_launch_bwd.cuh"
#include "fuseline/rms_cuda_launch_fwd.cuh"

namespace fuseline::rms {

template <typename T, bool ADDS, typename Y>
cudaError_t launch_fwd(const FwdProblem& p) {
  return p.weight_type == WeightType::kSame ? fwd_typed<T, T, ADDS, Y>(p)
                                            : fwd_typed<T, float, ADDS, Y>(p);
}

template <typename T, bool ADDS>
cudaError_t launch_bwd(const BwdProblem& p) {
  p.weight_type == WeightType::kSame ? bwd_typed<T, T, ADDS>(p) : bwd_typed<T, float, ADDS>(p);
  return cudaGetLastError();
}

template <typename T, bool ADDS>
int64_t bwd_parts(BwdProblem& p) {
  return p.weight_type == WeightType::kSame ? parts_typed<T, T, ADDS>(p)
                                            : parts_typed<T, float, ADDS>(p);
}

template <typename T, bool ADDS, typename Y>
int64_t fwd_sums(const FwdProblem& p) {
  return p.weight_type == WeightType::kSame ? fwd_sums_typed<T, T, ADDS, Y>(p)
                                            : fwd_sums_typed<T, float, ADDS, Y>(p);
}

template <typename T, bool ADDS>
int64_t bwd_sums(const BwdProblem& p) {
  return p.weight_type == WeightType::kSame ? bwd_sums_typed<T, T, ADDS>(p)
                                            : bwd_sums_typed<T, float, ADDS>(p);
}

}  // namespace fuseline::rms

// Instantiates the launches for one dtype of x, and for the norm of x or of x + residual.
#define FUSELINE_RMS_INSTANTIATE(T, ADDS)                                     \
  template cudaError_t fuseline::rms::launch_fwd<T, ADDS>(const FwdProblem&); \
  template cudaError_t fuseline::rms::launch_bwd<T, ADDS>(const BwdProblem&); \
  template int64_t fuseline::rms::fwd_sums<T, ADDS>(const FwdProblem&);       \
  template int64_t fuseline::rms::bwd_sums<T, ADDS>(const BwdProblem&);       \
  template int64_t fuseline::rms::bwd_parts<T, ADDS>(BwdProblem&);

// The same of a y in e4m3; forward only.
#define FUSELINE_RMS_INSTANTIATE_E4M3(T)                                         \
  template cudaError_t fuseline::rms::launch_fwd<T, false, fuseline::rms::e4m3>( \
      const FwdProblem&);                                                        \
  template int64_t fuseline::rms::fwd_sums<T, false, fuseline::rms::e4m3>(const FwdProblem&);
