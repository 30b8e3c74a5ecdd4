// What both devices need of a tensor, by LibTorch's stable ABI alone.
#pragma once
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Exception.h>
#include <torch/headeronly/util/Half.h>

namespace rmsnorm {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// Halves are computed in float.
template <class T>
struct Compute {
  using type = float;
};
template <>
struct Compute<double> {
  using type = double;
};

// Calls f with a value of the tensor's element type.
template <class F>
void by_dtype(const Tensor& x, F f) {
  switch (x.scalar_type()) {
    case ScalarType::Double:
      return f(double{});
    case ScalarType::Float:
      return f(float{});
    case ScalarType::Half:
      return f(torch::headeronly::Half{});
    case ScalarType::BFloat16:
      return f(torch::headeronly::BFloat16{});
    default:
      STD_TORCH_CHECK(false, "rmsnorm: x has dtype ", x.scalar_type(),
                      ", expected float64, float32, float16 or bfloat16");
  }
}

inline ScalarType compute_dtype(const Tensor& x) {
  return x.scalar_type() == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

}  // namespace rmsnorm
