// The element types of the CPU kernels, by which their tables are ordered. No torch and no inline
// functions here: every instruction set's translation unit includes it.
#pragma once

#include <cstdint>

namespace fuseline {

enum class Element { f64, f32, f16, bf16 };
constexpr int kElements = 4;

}  // namespace fuseline
