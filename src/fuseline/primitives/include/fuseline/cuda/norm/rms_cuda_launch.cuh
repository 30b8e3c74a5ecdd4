// Chooses kernel and block by row length and alignment only, so that a row's result does not
// depend on the batch. Included once per dtype of x.
#pragma once

#include "fuseline/cuda/norm/backward/rms_cuda_launch_bwd.cuh"
#include "fuseline/cuda/norm/rms_cuda_launch_fwd.cuh"

namespace fuseline::rms {

template <typename T, bool ADDS, typename Y>
cudaError_t launch_fwd(const FwdProblem& p) {
  return p.weight_type == WeightType::kSame ? fwd_typed<T, T, ADDS, Y>(p)
                                            : fwd_typed<T, float, ADDS, Y>(p);
}

template <typename T, Kind KIND>
cudaError_t launch_bwd(const BwdProblem& p) {
  p.weight_type == WeightType::kSame ? bwd_typed<T, T, KIND>(p) : bwd_typed<T, float, KIND>(p);
  return cudaGetLastError();
}

template <typename T, Kind KIND>
int64_t bwd_parts(BwdProblem& p) {
  return p.weight_type == WeightType::kSame ? parts_typed<T, T, KIND>(p)
                                            : parts_typed<T, float, KIND>(p);
}

template <typename T, Kind KIND>
int64_t bwd_sums(const BwdProblem& p) {
  return p.weight_type == WeightType::kSame ? bwd_sums_typed<T, T, KIND>(p)
                                            : bwd_sums_typed<T, float, KIND>(p);
}

}  // namespace fuseline::rms

// Instantiates the launches for one dtype of x, and for a kind of backward.
#define FUSELINE_RMS_INSTANTIATE_BWD(T, KIND)                                 \
  template cudaError_t fuseline::rms::launch_bwd<T, KIND>(const BwdProblem&); \
  template int64_t fuseline::rms::bwd_sums<T, KIND>(const BwdProblem&);       \
  template int64_t fuseline::rms::bwd_parts<T, KIND>(BwdProblem&);

// The same, with the forward, for the norm of x or of x + residual.
#define FUSELINE_RMS_INSTANTIATE(T, ADDS)                                     \
  template cudaError_t fuseline::rms::launch_fwd<T, ADDS>(const FwdProblem&); \
  FUSELINE_RMS_INSTANTIATE_BWD(T, fuseline::rms::kind_of(ADDS))

// The forward alone, of a y in e4m3.
#define FUSELINE_RMS_INSTANTIATE_E4M3(T) \
  template cudaError_t fuseline::rms::launch_fwd<T, false, fuseline::rms::e4m3>(const FwdProblem&);
