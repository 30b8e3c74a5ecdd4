// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)");
  m.def("_rope(Tensor q, Tensor k, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)");
  m.def(
      "_rope_bwd(Tensor dq, Tensor dk, Tensor cos, Tensor sin, bool interleaved) -> "
      "(Tensor, Tensor)");
}
