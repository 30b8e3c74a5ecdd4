#include "impl_cuda_launch.cuh"

FUSELINE_RMS_NORM_INSTANTIATE(__nv_bfloat16)
