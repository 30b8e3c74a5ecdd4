#include "fuseline/cpu/rms_rows_kernels.h"
#include "impl_cpu_dispatch.h"

const fuseline::rms::Kernels fuseline::add_rms_norm::kernels_avx512 = fuseline::rms::kKernels<true>;
