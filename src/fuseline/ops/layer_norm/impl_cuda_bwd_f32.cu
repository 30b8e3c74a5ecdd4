#include "fuseline/cuda/norm/rms_cuda_launch.cuh"

FUSELINE_RMS_INSTANTIATE_BWD(float, fuseline::rms::Kind::kCentred)
