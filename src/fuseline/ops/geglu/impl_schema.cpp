// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("geglu(Tensor a, Tensor? b, str approximate) -> Tensor");
  m.def("_geglu(Tensor a, Tensor? b, str approximate) -> Tensor");
  m.def("_geglu_bwd(Tensor dy, Tensor a, Tensor? b, str approximate) -> (Tensor, Tensor)");
}
