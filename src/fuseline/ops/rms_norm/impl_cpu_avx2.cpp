#define FUSELINE_ISA avx2
#include "impl_cpu_kernels.h"
