// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> Tensor");
  m.def("_rms_norm(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> Tensor");
  m.def(
      "_rms_norm_fwd(Tensor x, Tensor? weight, float eps, float weight_offset=0.0) -> (Tensor, "
      "Tensor)");
  m.def(
      "_rms_norm_bwd(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, bool need_dx, "
      "bool need_dweight, float weight_offset=0.0) -> (Tensor, Tensor)");
}
