// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("double_softmax(Tensor x, int dim) -> Tensor");
  m.def("_double_softmax(Tensor x, int dim) -> Tensor");
  m.def("_double_softmax_fwd(Tensor x, int dim) -> (Tensor, Tensor)");
  m.def("_double_softmax_bwd(Tensor dy, Tensor x, Tensor stats, int dim) -> Tensor");
}
