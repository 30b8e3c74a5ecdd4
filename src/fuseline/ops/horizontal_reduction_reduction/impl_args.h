// What every backend of horizontal_reduction_reduction checks before it touches memory: raw
// torch.ops calls are public.
#pragma once

#include "fuseline/core/cpp/layout.h"

namespace fuseline::horizontal_reduction_reduction {

constexpr NormArgs kArgs{"horizontal_reduction_reduction"};

inline void check(const Tensor& x) {
  kArgs.check_rows(x);
  STD_TORCH_CHECK(x.sizes()[x.dim() - 1] > 0, kArgs.op, ": x has shape ", to_string(x.sizes()),
                  ", expected at least one column");
}

inline void check_bwd(const Tensor& dsum, const Tensor& damax, const Tensor& x, const Tensor& amax,
                      const Tensor& count) {
  check(x);
  kArgs.check_one_a_row("dsum", dsum, x, x.scalar_type());
  kArgs.check_one_a_row("damax", damax, x, x.scalar_type());
  kArgs.check_one_a_row("amax", amax, x, x.scalar_type());
  kArgs.check_one_a_row("count", count, x, ScalarType::Double);
}

// An order in which to sum rows, or columns, of `x`: its own where rows have one stride, else that
// of memory.
inline MemoryOrder order_of(const Tensor& x) {
  return x.numel() == 0 || row_stride(x) ? MemoryOrder(x.dim()) : MemoryOrder(x);
}

}  // namespace fuseline::horizontal_reduction_reduction
