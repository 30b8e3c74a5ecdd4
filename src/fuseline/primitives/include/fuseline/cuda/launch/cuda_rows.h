// What the CUDA halves of operators on rows share around their kernels: the dispatch over dtypes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fuseline/core/cpp/cuda.h"

namespace fuseline {

// Calls f with a null pointer of the element type of x. Without DOUBLE fp64 is none of them.
template <bool DOUBLE = true, typename F>
auto for_dtype(ScalarType dtype, const F& f) {
  if constexpr (DOUBLE) {
    if (dtype == ScalarType::Double) return f(static_cast<double*>(nullptr));
  }
  switch (dtype) {
    case ScalarType::Float:
      return f(static_cast<float*>(nullptr));
    case ScalarType::Half:
      return f(static_cast<__half*>(nullptr));
    default:
      return f(static_cast<__nv_bfloat16*>(nullptr));
  }
}

}  // namespace fuseline
