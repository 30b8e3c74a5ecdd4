#include "impl_cpu_kernels.h"

const fuseline::norm_chain::Kernels fuseline::norm_chain::kernels_avx512 =
    fuseline::norm_chain::kKernels;
