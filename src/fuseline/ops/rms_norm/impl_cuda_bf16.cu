#include "fuseline/cuda/norm/rms_cuda_launch.cuh"

FUSELINE_RMS_INSTANTIATE(__nv_bfloat16, false)
