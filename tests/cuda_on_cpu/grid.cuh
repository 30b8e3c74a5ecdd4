// Stands in for what blocks tell each other through memory.
#pragma once

#include "emulator.h"

namespace fuseline {

#ifdef BLOCKS_AT_ONCE
class GridBarrier {
 public:
  void arrive() {
    __syncthreads();
    if (threadIdx.x == 0) ++emulator::arrived;
  }
  void wait() {
    while (emulator::arrived < gridDim.x) emulator::pause();
    __syncthreads();
  }
};
#else
struct GridBarrier {
  void arrive() {}
  void wait() {}
};
#endif

inline void write_shared_word(uint64_t* to, uint64_t word) {
  __atomic_store_n(to, word, __ATOMIC_RELAXED);
}
inline uint64_t read_shared_word(const uint64_t* from) {
  emulator::pause();
  return __atomic_load_n(from, __ATOMIC_RELAXED);
}

}  // namespace fuseline
