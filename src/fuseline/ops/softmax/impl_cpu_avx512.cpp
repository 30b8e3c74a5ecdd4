#include "impl_cpu_kernels.h"

const fuseline::softmax::Kernels fuseline::softmax::kernels_avx512 = fuseline::softmax::kKernels;
