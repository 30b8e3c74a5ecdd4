// RMSNorm's CPU kernels for callers without torch tensors: rows that lie one after the other in
// memory. No torch and no JAX here: the binary defines these, the handlers of jax.ffi call them.
#pragma once

#include <cstdint>

namespace fuseline::jax {

// Elements are numbered as fuseline::Element: fp64, fp32, fp16, bf16. rstd is fp32 (fp64 of fp64).
// False where the pair of elements is not offered; nothing is written then.
using RmsNormFwd = bool(int element, int weight_element, const void* x, const void* weight, void* y,
                        void* rstd, int64_t rows, int64_t n, double eps);
using RmsNormBwd = bool(int element, int weight_element, const void* dy, const void* x,
                        const void* weight, const void* rstd, void* dx, void* dweight, int64_t rows,
                        int64_t n);

}  // namespace fuseline::jax
