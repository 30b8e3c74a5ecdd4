// Copies between layouts.
#include "emulator.h"
#include "fuseline/cuda/copies_launch.cuh"

// 0 where a copy is left to torch, 1 where threads write what they read, 2 where it goes by tiles.
#define EXPORT(bytes, T)                                                                  \
  extern "C" int64_t copy_##bytes(const T* from, T* to, const int64_t* sizes,             \
                                  const int64_t* from_strides, const int64_t* to_strides, \
                                  int64_t dims) {                                         \
    const auto c = fuseline::copy_of(sizes, from_strides, to_strides, dims);              \
    if (!c) return 0;                                                                     \
    if (fuseline::launch_copy(from, to, *c, nullptr) != cudaSuccess) return -1;           \
    return fuseline::by_tiles(*c) ? 2 : 1;                                                \
  }
EXPORT(2, uint16_t)
EXPORT(4, uint32_t)
EXPORT(8, uint64_t)
