// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("swiglu(Tensor a, Tensor? b) -> Tensor");
  m.def("_swiglu(Tensor a, Tensor? b) -> Tensor");
  m.def("_swiglu_bwd(Tensor dy, Tensor a, Tensor? b) -> (Tensor, Tensor)");
}
