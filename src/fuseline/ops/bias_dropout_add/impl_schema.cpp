// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def(
      "bias_dropout_add(Tensor x, Tensor bias, Tensor residual, float p, bool training, "
      "SymInt? seed, Tensor? seed_tensor=None) -> Tensor");
  m.def(
      "_bias_dropout_add(Tensor x, Tensor bias, Tensor residual, float p, bool training, "
      "SymInt? seed, Tensor? seed_tensor=None) -> Tensor");
  m.def(
      "_bias_dropout_add_bwd(Tensor dy, float p, SymInt? seed, Tensor? seed_tensor=None) -> "
      "Tensor");
}
