// The table of row kernels for each instruction set. No torch and no inline functions here: every
// instruction set's translation unit includes it.
#pragma once

#include "fuseline/cpu/softmax_rows.h"

namespace fuseline::double_softmax {

extern const softmax::Kernels kernels_default;
#ifdef __x86_64__
extern const softmax::Kernels kernels_avx2;
extern const softmax::Kernels kernels_avx512;
#endif

}  // namespace fuseline::double_softmax
