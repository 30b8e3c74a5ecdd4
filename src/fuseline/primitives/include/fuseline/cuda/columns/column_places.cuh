// Where what has one element a column lies, of columns that come in another order than its own.
#pragma once

#include <cstdint>

namespace fuseline::rows {

// Columns of three dimensions, the faster two of these sizes, and the strides of all.
struct ColumnPlaces {
  unsigned sizes[2];  // the last is 0 where they lie one after the other
  int64_t steps[3];

  __device__ __forceinline__ int64_t operator()(int64_t column) const {
    if (sizes[1] == 0) return column;
    const auto at = static_cast<unsigned>(column);
    const unsigned outer = at / sizes[1], slowest = outer / sizes[0];
    return slowest * steps[0] + (outer - slowest * sizes[0]) * steps[1] +
           (at - outer * sizes[1]) * steps[2];
  }
};

}  // namespace fuseline::rows
