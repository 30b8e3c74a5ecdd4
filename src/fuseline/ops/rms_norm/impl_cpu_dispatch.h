// The table of row kernels for each instruction set. No torch and no inline functions here: every
// instruction set's translation unit includes it.
#pragma once

#include "fuseline/cpu/rms_rows.h"

namespace fuseline::rms_norm {

extern const rms::Kernels kernels_default;
#ifdef __x86_64__
extern const rms::Kernels kernels_avx2;
extern const rms::Kernels kernels_avx512;
#endif

}  // namespace fuseline::rms_norm
