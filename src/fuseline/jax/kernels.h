// RMSNorm's kernels for callers without torch tensors: rows that lie one after the other in memory.
// No torch and no JAX here: the binary defines these, the handlers of jax.ffi call them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fuseline::jax {

// Where a GPU's kernel runs: a cudaStream_t of the current device, and memory that lasts until the
// kernel has run, or null. A CPU's needs neither.
struct Launch {
  void* stream;
  void* allocator;
  void* (*allocate)(void* allocator, size_t bytes);
};

// Elements are numbered as fuseline::Element: fp64, fp32, fp16, bf16. rstd is fp32 (fp64 of fp64).
// Returns null, or what is wrong; nothing is written then.
using RmsNormFwd = const char*(const Launch& launch, int element, int weight_element, const void* x,
                               const void* weight, void* y, void* rstd, int64_t rows, int64_t n,
                               double eps);
using RmsNormBwd = const char*(const Launch& launch, int element, int weight_element,
                               const void* dy, const void* x, const void* weight, const void* rstd,
                               void* dx, void* dweight, int64_t rows, int64_t n);

constexpr const char* kNoKernel = "no kernel for these dtypes";

}  // namespace fuseline::jax

#define FUSELINE_EXPORT extern "C" __attribute__((visibility("default")))
