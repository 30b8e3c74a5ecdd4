// Chooses kernel and block by row length and alignment only, so that a row's result does not
// depend on the batch. Included once per dtype of x.
#pragma once

#include "fuseline/cuda/norm/backward/rms_cuda_launch_bwd.cuh"
#include "fuseline/cuda/norm/rms_cuda_launch_fwd.cuh"

namespace fuseline::rms {

// Calls f with the weight's type: that of T or, of half types, fp32.
template <typename T, typename F>
auto with_weight(WeightType type, const F& f) {
  if constexpr (sizeof(T) < sizeof(float)) {
    if (type == WeightType::kFloat) return f(float{});
  }
  return f(T{});
}

template <typename T, bool ADDS, typename Y>
cudaError_t launch_fwd(const FwdProblem& p) {
  return with_weight<T>(p.weight_type,
                        [&](auto w) { return fwd_typed<T, decltype(w), ADDS, Y>(p); });
}

template <typename T, Kind KIND>
cudaError_t launch_bwd(const BwdProblem& p) {
  with_weight<T>(p.weight_type, [&](auto w) { bwd_typed<T, decltype(w), KIND>(p); });
  return cudaGetLastError();
}

template <typename T, Kind KIND>
int64_t bwd_parts(BwdProblem& p) {
  return with_weight<T>(p.weight_type,
                        [&](auto w) { return parts_typed<T, decltype(w), KIND>(p); });
}

template <typename T, Kind KIND>
int64_t bwd_sums(const BwdProblem& p) {
  return with_weight<T>(p.weight_type,
                        [&](auto w) { return bwd_sums_typed<T, decltype(w), KIND>(p); });
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
