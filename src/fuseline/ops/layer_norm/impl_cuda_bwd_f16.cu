#include "fuseline/cuda/norm/rms_cuda_launch.cuh"

FUSELINE_RMS_INSTANTIATE_BWD(__half, fuseline::rms::Kind::kCentred)
