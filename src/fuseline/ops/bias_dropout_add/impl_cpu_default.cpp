#include "impl_cpu_kernels.h"

const fuseline::bias_dropout_add::Kernels fuseline::bias_dropout_add::kernels_default =
    fuseline::bias_dropout_add::kKernels;
