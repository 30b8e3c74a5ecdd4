#include "fuseline/softmax_columns_kernels.h"
#include "impl_cpu_dispatch.h"

const fuseline::softmax::Kernels fuseline::softmax_backward::kernels_avx512 =
    fuseline::softmax::kGradientKernels;
