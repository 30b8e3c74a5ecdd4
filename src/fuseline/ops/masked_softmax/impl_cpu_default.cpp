#include "impl_cpu_kernels.h"

const fuseline::masked_softmax::Kernels fuseline::masked_softmax::kernels_default =
    fuseline::masked_softmax::kKernels;
