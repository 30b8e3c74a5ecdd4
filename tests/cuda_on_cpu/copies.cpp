// Copies by tiles.
#include "emulator.h"
#include "fuseline/cuda/transpose.cuh"

// False where a copy is not one of tiles.
#define EXPORT(bytes, T)                                                                       \
  extern "C" int64_t transpose_##bytes(const T* from, T* to, const int64_t* sizes,             \
                                       const int64_t* from_strides, const int64_t* to_strides, \
                                       int64_t dims) {                                         \
    const auto t = fuseline::transposition(sizes, from_strides, to_strides, dims);             \
    if (t) fuseline::launch_transpose(from, to, *t, nullptr);                                  \
    return t.has_value();                                                                      \
  }
EXPORT(2, uint16_t)
EXPORT(4, uint32_t)
EXPORT(8, uint64_t)
