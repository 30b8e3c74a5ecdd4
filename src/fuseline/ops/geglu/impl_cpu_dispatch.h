// The CPU kernels of geglu for each instruction set. No torch and no inline functions here: every
// instruction set's translation unit includes it.
#pragma once

#include "fuseline/cpu/gated/gated_rows.h"
#include "fuseline/gelu_formula.h"

namespace fuseline::geglu {

struct Kernels {
  gated::Kernels by[gelu::kFormulas];
};

}  // namespace fuseline::geglu
