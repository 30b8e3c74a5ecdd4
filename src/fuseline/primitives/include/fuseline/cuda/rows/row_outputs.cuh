// What operators of row_cuda.cuh write, and where.
#pragma once

#include "fuseline/cuda/skew.cuh"

namespace fuseline::rows {

// Where COUNT output tensors are written.
template <typename T, int COUNT>
struct OutputPointers {
  T* of[COUNT];
  __device__ __forceinline__ OutputPointers at(int64_t element) const {
    OutputPointers moved;
#pragma unroll
    for (int k = 0; k < COUNT; ++k) moved.of[k] = of[k] + element;
    return moved;
  }
};
template <typename T>
struct OutputPointers<T, 0> {};

template <typename Op, typename = void>
struct WrittenBy {
  using type = typename Op::T;
};
template <typename Op>
struct WrittenBy<Op, std::void_t<typename Op::Y>> {
  using type = typename Op::Y;
};
template <typename Op>
using Written = typename WrittenBy<Op>::type;
template <typename Op>
using OutputsOf = OutputPointers<Written<Op>, Op::OUTPUTS>;

// Values of several outputs, and those of one of them.
template <typename S, int VEC, int COUNT>
struct Outputs {
  Values<S, VEC> of[COUNT];
};
template <typename S, int VEC, int COUNT>
__device__ __forceinline__ const Values<S, VEC>& output(const Outputs<S, VEC, COUNT>& y, int k) {
  return y.of[k];
}
template <typename S, int VEC>
__device__ __forceinline__ const Values<S, VEC>& output(const Values<S, VEC>& y, int) {
  return y;
}

// Writes what `out` gave.
template <int VEC, typename Y, int COUNT, typename Values>
__device__ __forceinline__ void store_outputs(const OutputPointers<Y, COUNT>& to, int64_t at,
                                              const Values& y) {
#pragma unroll
  for (int k = 0; k < COUNT; ++k) store<Y, VEC>(to.of[k] + at, pack<Y>(output(y, k)));
}

// The output rows of a warp, where they may begin anywhere.
template <typename Op, int VEC, int COUNT = Op::OUTPUTS>
struct SkewedOutputs {
  using Y = Written<Op>;
  SkewedOutputs<Op, VEC, COUNT - 1> others;
  SkewedRow<Y, VEC> last;

  __device__ __forceinline__ explicit SkewedOutputs(const OutputsOf<Op>& to)
      : others(to), last(to.of[COUNT - 1]) {}
  template <typename Values>
  __device__ __forceinline__ void put(const Values& y, int col, bool first, int end) {
    others.put(y, col, first, end);
    last.put(pack<Y>(output(y, COUNT - 1)), col, first, end);
  }
};
template <typename Op, int VEC>
struct SkewedOutputs<Op, VEC, 0> {
  template <typename To>
  __device__ __forceinline__ explicit SkewedOutputs(const To&) {}
  template <typename Values>
  __device__ __forceinline__ void put(const Values&, int, bool, int) {}
};

}  // namespace fuseline::rows
