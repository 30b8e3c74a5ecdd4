// What the CPU row kernels of cross_entropy take, and the table of them for one instruction set. No
// torch and no inline functions here: every instruction set's translation unit includes it.
#pragma once

#include "fuseline/element.h"

namespace fuseline::cross_entropy {

// Rows of logits, their classes, and what the loss is made of. Weights, stats and losses are fp32,
// or fp64 of fp64 logits.
struct Problem {
  const void* logits;
  const int64_t* target;
  const void* weight;  // none: 1 each
  void* stats;         // (rows, 2): the largest logit, log(sum of exponentials relative to it)
  int64_t n, stride;   // classes; elements between rows
  int64_t ignore_index;
  double smoothing, z_loss, softcap;
  double weights;  // of all classes, together
};

struct ForwardArgs {
  Problem of;
  void* losses;
};

// The gradients of the rows' losses lie `step` apart and are divided by `total`, the rows of
// dlogits `apart`. They may be those of logits.
struct GradientArgs {
  Problem of;
  const void* dloss;
  void* dlogits;
  int64_t step, apart;
  double total;
};

// All take rows [first, last). By element of the logits.
struct Kernels {
  void (*forward[kElements])(const ForwardArgs&, int64_t first, int64_t last);
  void (*gradient[kElements])(const GradientArgs&, int64_t first, int64_t last);
};

}  // namespace fuseline::cross_entropy
