// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  m.def("_layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> Tensor");
  m.def(
      "_layer_norm_fwd(Tensor x, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, "
      "Tensor)");
  m.def(
      "_layer_norm_bwd(Tensor dy, Tensor x, Tensor? weight, Tensor mean, Tensor rstd, bool "
      "need_dx, "
      "bool need_dweight, bool need_dbias) -> (Tensor, Tensor, Tensor)");
}
