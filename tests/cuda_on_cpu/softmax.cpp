// The forwards of the softmaxes of fp32, chosen and launched as on a GPU.
#include "emulator.h"
#include "fuseline/row_launch.cuh"
#include "fuseline/softmax_cuda.cuh"

namespace {

template <typename Op>
void run(const void* x, void* y, int64_t rows, int64_t n, int backwards) {
  emulator::backwards = backwards;
  fuseline::rows::launch({{static_cast<const float*>(x)}, {n}, static_cast<float*>(y), rows, n},
                         Op{}, nullptr);
}

}  // namespace

#define EXPORT(name, Op)                                                                 \
  extern "C" void name(const void* x, void* y, int64_t rows, int64_t n, int backwards) { \
    run<Op<float>>(x, y, rows, n, backwards);                                            \
  }
EXPORT(softmax_f32, fuseline::softmax::Softmax)
EXPORT(log_softmax_f32, fuseline::softmax::LogSoftmax)
EXPORT(double_softmax_f32, fuseline::softmax::DoubleSoftmax)
