// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("bias_gelu(Tensor x, Tensor bias, str approximate) -> Tensor");
  m.def("_bias_gelu(Tensor x, Tensor bias, str approximate) -> Tensor");
  m.def(
      "_bias_gelu_bwd(Tensor dy, Tensor x, Tensor bias, str approximate, bool need_dx, "
      "bool need_dbias) -> (Tensor, Tensor)");
  // The gradient through an activation that is part of a product, and of the bias before it.
  m.def(
      "_activation_bwd(Tensor dy, Tensor x, str activation, bool need_dbias) -> (Tensor, Tensor)");
}
