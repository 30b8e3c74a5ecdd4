#define FUSELINE_ISA default
#include "impl_cpu_kernels.h"
