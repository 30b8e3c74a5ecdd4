// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("norm_chain(Tensor x) -> Tensor");
  m.def("_norm_chain(Tensor x) -> Tensor");
  m.def("_norm_chain_fwd(Tensor x) -> (Tensor, Tensor)");
  m.def("_norm_chain_bwd(Tensor dy, Tensor x, Tensor sum) -> Tensor");
}
