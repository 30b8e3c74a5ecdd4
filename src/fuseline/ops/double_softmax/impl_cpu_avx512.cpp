#include "impl_cpu_kernels.h"

const fuseline::softmax::Kernels fuseline::double_softmax::kernels_avx512 =
    fuseline::double_softmax::kKernels;
