// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("horizontal_reduction_pointwise(Tensor x) -> (Tensor, Tensor)");
  m.def("_horizontal_reduction_pointwise(Tensor x) -> (Tensor, Tensor)");
  m.def("_horizontal_reduction_pointwise_bwd(Tensor dsum, Tensor dcos, Tensor x) -> Tensor");
}
