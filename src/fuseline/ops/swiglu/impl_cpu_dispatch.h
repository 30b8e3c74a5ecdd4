// The CPU kernels of swiglu for each instruction set. No torch and no inline functions here: every
// instruction set's translation unit includes it.
#pragma once

#include "fuseline/cpu/gated/gated_rows.h"

namespace fuseline::swiglu {

extern const gated::Kernels kernels_default;
#ifdef __x86_64__
extern const gated::Kernels kernels_avx2;
extern const gated::Kernels kernels_avx512;
#endif

}  // namespace fuseline::swiglu
