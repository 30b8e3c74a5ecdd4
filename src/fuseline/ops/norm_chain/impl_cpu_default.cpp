#include "impl_cpu_kernels.h"

const fuseline::norm_chain::Kernels fuseline::norm_chain::kernels_default =
    fuseline::norm_chain::kKernels;
