#include "impl_cpu_kernels.h"

const fuseline::pointwise_chain::Kernels fuseline::pointwise_chain::kernels_avx512 =
    fuseline::pointwise_chain::kKernels;
