#define FUSELINE_ISA avx512
#include "impl_cpu_kernels.h"
