#include "impl_cpu_kernels.h"

const fuseline::masked_softmax::Kernels fuseline::masked_softmax::kernels_avx512 =
    fuseline::masked_softmax::kKernels;
