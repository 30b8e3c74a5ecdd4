#include "fuseline/cuda/norm/rms_cuda_launch.cuh"

FUSELINE_RMS_INSTANTIATE_BWD(__nv_bfloat16, fuseline::rms::Kind::kCentred)
