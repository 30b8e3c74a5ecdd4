#include "fuseline/cuda/norm/rms_cuda_launch.cuh"

FUSELINE_RMS_INSTANTIATE(float, false)
