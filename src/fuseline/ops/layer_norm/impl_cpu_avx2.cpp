#include "impl_cpu_kernels.h"

const fuseline::layer_norm::Kernels fuseline::layer_norm::kernels_avx2 =
    fuseline::layer_norm::kKernels;
