#include "impl_cpu_kernels.h"

const fuseline::softmax::Kernels fuseline::double_softmax::kernels_default =
    fuseline::double_softmax::kKernels;
