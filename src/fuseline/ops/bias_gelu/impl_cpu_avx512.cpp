#include "impl_cpu_kernels.h"

const fuseline::bias_gelu::Kernels fuseline::bias_gelu::kernels_avx512 =
    fuseline::bias_gelu::kKernels;
