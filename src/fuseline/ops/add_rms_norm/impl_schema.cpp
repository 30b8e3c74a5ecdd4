// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor)");
  m.def("_add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float eps) -> (Tensor, Tensor)");
  m.def(
      "_add_rms_norm_fwd(Tensor x, Tensor residual, Tensor? weight, float eps) -> "
      "(Tensor, Tensor, Tensor)");
  m.def(
      "_add_rms_norm_bwd(Tensor dy, Tensor? d_new_residual, Tensor new_residual, Tensor? weight, "
      "Tensor rstd, bool need_dx, bool need_dweight) -> (Tensor, Tensor)");
}
