#include "impl_cpu_kernels.h"

const fuseline::horizontal_reduction_reduction::Kernels
    fuseline::horizontal_reduction_reduction::kernels_avx2 =
        fuseline::horizontal_reduction_reduction::kKernels;
