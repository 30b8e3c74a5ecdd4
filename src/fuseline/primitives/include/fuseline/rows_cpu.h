// What the CPU halves of operators on rows share around their kernels: dtypes and threads.
#pragma once

#include <algorithm>

#include "fuseline/core/cpp/tensor.h"
#include "fuseline/element.h"

namespace fuseline {

inline Element element_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Double:
      return Element::f64;
    case ScalarType::Float:
      return Element::f32;
    case ScalarType::Half:
      return Element::f16;
    default:
      return Element::bf16;
  }
}

// fn(first, last) over `items`, each of which has `elements`.
template <class F>
void parallel(int64_t items, int64_t elements, const F& fn) {
  // Elements a thread gets at least: ATen's own grain size.
  constexpr int64_t kGrain = 32768;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, elements));
  if (items <= grain) return fn(0, items);
  torch::stable::parallel_for(0, items, grain, fn);
}

}  // namespace fuseline
