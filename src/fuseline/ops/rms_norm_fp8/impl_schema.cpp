// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("rms_norm_fp8(Tensor x, Tensor? weight, Tensor scale, float eps) -> Tensor");
  m.def("_rms_norm_fp8(Tensor x, Tensor? weight, Tensor scale, float eps) -> Tensor");
}
