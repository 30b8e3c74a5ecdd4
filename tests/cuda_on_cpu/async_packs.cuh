// Stands in for the copies that each thread waits for by itself: these come as late as they may.
#pragma once

#include "emulator.h"

namespace fuseline {

inline auto& copies() { return emulator::fibers[emulator::current].copies; }
inline void copy16(void* to, const void* from, bool = false) {
  copies().back().push_back({to, from});
}
inline void end_batch() { copies().emplace_back(); }
template <int LATER>
inline void wait_for_batch() {
  for (; copies().size() > LATER + 1; copies().erase(copies().begin())) {
    for (const auto& copy : copies().front()) std::memcpy(copy.to, copy.from, 16);
  }
}

}  // namespace fuseline
