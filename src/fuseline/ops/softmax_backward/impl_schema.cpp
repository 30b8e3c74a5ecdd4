// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("softmax_backward(Tensor dy, Tensor y, int dim) -> Tensor");
  m.def("_softmax_backward(Tensor dy, Tensor y, int dim) -> Tensor");
  m.def("_softmax_backward_bwd(Tensor ddx, Tensor dy, Tensor y, int dim) -> (Tensor, Tensor)");
}
