// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("pointwise_chain(Tensor x) -> Tensor");
  m.def("_pointwise_chain(Tensor x) -> Tensor");
  m.def("_pointwise_chain_bwd(Tensor dy, Tensor x) -> Tensor");
}
