// What bias_dropout_add iterates over: as few axes as the layouts allow, out's fastest one last.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "fuseline/core/cpp/tensor.h"

namespace fuseline::bias_dropout_add {

// `kPosition` is the place of an element in the tensor's logical order, as if that were memory.
enum Operand { kOut, kX, kBias, kResidual, kPosition, kOperands };

// Strides of 0 stand for an operand that is not there.
struct Axis {
  int64_t size = 1;
  std::array<int64_t, kOperands> strides{};

  // Whether a step of this axis is a whole turn of `inner`, forevery operand.
  bool continues(const Axis& inner) const {
    for (int o = 0; o < kOperands; ++o) {
      if (strides[o] != inner.strides[o] * inner.size) return false;
    }
    return true;
  }
};

// Tensors broadcast to the sizes of `out`, null where there are none; `drop`: positions count.
inline std::vector<Axis> axes_of(const std::array<const Tensor*, kPosition>& tensors, bool drop) {
  const auto sizes = tensors[kOut]->sizes();
  const size_t dims = sizes.size();
  std::vector<Axis> axes;
  int64_t step = 1;
  for (size_t d = dims; d-- > 0; step *= sizes[d]) {
    Axis axis{sizes[d]};
    for (int o = 0; o < kPosition; ++o) {
      if (!tensors[o]) continue;
      const size_t lead = dims - tensors[o]->sizes().size();
      if (d >= lead && tensors[o]->sizes()[d - lead] != 1) {
        axis.strides[o] = tensors[o]->strides()[d - lead];
      }
    }
    if (drop) axis.strides[kPosition] = step;
    if (axis.size != 1) axes.push_back(axis);
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [](const Axis& a, const Axis& b) { return a.strides[kOut] < b.strides[kOut]; });
  size_t kept = 0;  // fastest first
  for (size_t i = 1; i < axes.size(); ++i) {
    if (axes[i].continues(axes[kept])) {
      axes[kept].size *= axes[i].size;
    } else {
      axes[++kept] = axes[i];
    }
  }
  axes.resize(std::min(axes.size(), kept + 1));
  return axes;
}

}  // namespace fuseline::bias_dropout_add
