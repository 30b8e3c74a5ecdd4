#include "impl_cpu_kernels.h"

const fuseline::softmax::Kernels fuseline::log_softmax::kernels_avx512 =
    fuseline::log_softmax::kKernels;
