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

// Rows whose sums by column one thread takes in one go. They depend on the shape alone, so that the
// result does not depend on the number of threads: 64 chunks feed as many threads, and at 256 rows
// a chunk the sums are 1 % of what is read. Chunks of one row made (64, 65536) fp32 twice as slow
// as of four (2 cores, 2026-11-20).
struct Chunks {
  int64_t rows, size, count;

  explicit Chunks(int64_t rows)
      : rows(rows),
        size(std::clamp<int64_t>((rows + 63) / 64, 4, 256)),
        count(std::max<int64_t>(1, (rows + size - 1) / size)) {}

  // fn(chunk, first row, last row) of rows of n elements.
  template <class F>
  void each(int64_t n, const F& fn) const {
    parallel(count, size * n, [&](int64_t first, int64_t last) {
      for (int64_t c = first; c < last; ++c) fn(c, c * size, std::min(rows, (c + 1) * size));
    });
  }
};

}  // namespace fuseline
