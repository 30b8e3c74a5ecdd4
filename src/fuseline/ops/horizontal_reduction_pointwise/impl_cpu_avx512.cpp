#include "impl_cpu_kernels.h"

const fuseline::horizontal_reduction_pointwise::Kernels
    fuseline::horizontal_reduction_pointwise::kernels_avx512 =
        fuseline::horizontal_reduction_pointwise::kKernels;
