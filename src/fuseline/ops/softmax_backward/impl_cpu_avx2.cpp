#include "impl_cpu_kernels.h"

const fuseline::softmax_backward::Kernels fuseline::softmax_backward::kernels_avx2 = kKernels;
