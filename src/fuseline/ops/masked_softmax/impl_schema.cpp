// The operator's schemas; op.py repeats them for installations without this binary.
#include "fuseline/core/cpp/tensor.h"

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("masked_softmax(Tensor x, Tensor? mask, bool causal, float scale, bool log) -> Tensor");
  m.def("_masked_softmax(Tensor x, Tensor? mask, bool causal, float scale, bool log) -> Tensor");
  m.def("_masked_softmax_bwd(Tensor dy, Tensor y, bool causal, float scale, bool log) -> Tensor");
}
