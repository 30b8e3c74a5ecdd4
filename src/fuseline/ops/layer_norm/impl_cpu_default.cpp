#include "impl_cpu_kernels.h"

const fuseline::layer_norm::Kernels fuseline::layer_norm::kernels_default =
    fuseline::layer_norm::kKernels;
