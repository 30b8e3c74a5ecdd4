// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("log_softmax(Tensor x, int dim) -> Tensor");
  m.def("_log_softmax(Tensor x, int dim) -> Tensor");
  m.def("_log_softmax_bwd(Tensor dy, Tensor y, int dim) -> Tensor");
}
