#include "impl_cpu_kernels.h"

const fuseline::softmax::Kernels fuseline::softmax::kernels_avx2 = fuseline::softmax::kKernels;
