// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("horizontal_reduction_reduction(Tensor x) -> (Tensor, Tensor)");
  m.def("_horizontal_reduction_reduction(Tensor x) -> (Tensor, Tensor)");
  m.def("_horizontal_reduction_reduction_fwd(Tensor x) -> (Tensor, Tensor, Tensor)");
  m.def(
      "_horizontal_reduction_reduction_bwd(Tensor dsum, Tensor damax, Tensor x, Tensor amax, "
      "Tensor count) -> Tensor");
}
