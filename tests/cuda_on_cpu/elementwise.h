// Elementwise operators, chosen and launched as on a GPU.
#pragma once

#include "emulator.h"
#include "fuseline/cuda/pointwise/pointwise_launch.cuh"

namespace pointwise {

using namespace fuseline::pointwise;

// Operands and results are of these sizes and have strides of their own, results one; a piece has
// at most `most` elements. 1 where there are more axes than kernels have.
template <typename Op>
int64_t run(const std::array<const void*, kSides<Op>>& in, const std::array<void*, Op::OUTPUTS>& to,
            const int64_t* sizes, const int64_t* const (&strides)[kSides<Op> + 1], int64_t dims,
            int64_t sms, int64_t most, int64_t backwards) {
  emulator::backwards = backwards;
  const auto axes = fuseline::axes_of<kSides<Op> + 1>(sizes, strides, dims);
  if (!axes) return 1;
  Problem<Op> a{};
  std::copy(in.begin(), in.end(), a.in);
  for (size_t k = 0; k < to.size(); ++k) a.to[k] = static_cast<typename Op::T*>(to[k]);
  launch(a, *axes, static_cast<int>(sms), nullptr, most);
  return 0;
}

}  // namespace pointwise
