#include "fuseline/cpu/rms_rows_kernels.h"
#include "impl_cpu_dispatch.h"

const fuseline::rms::Kernels fuseline::rms_norm_fp8::kernels_default = fuseline::rms::kE4m3Kernels;
