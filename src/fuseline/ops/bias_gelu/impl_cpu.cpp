// The CPU kernels of the bias_gelu operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::bias_gelu {
namespace {

const Kernels& kernels() { return FUSELINE_BY_ISA(kernels); }

int formula(const std::string& approximate) {
  return static_cast<int>(is_tanh(approximate) ? Formula::tanh : Formula::erf);
}

Tensor forward(const Tensor& x, Tensor bias, std::string approximate) {
  check(x, bias);
  Tensor y = allocate_like(x);
  const Rows in = rows_of(x);
  const ForwardArgs args{in.data(), bias.const_data_ptr(), y.mutable_data_ptr(), in.n, in.stride};
  const auto rows = kernels().forward[formula(approximate)][static_cast<int>(element_of(x))];
  if (in.n == 0) return y;  // any number of empty rows
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return y;
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& x, Tensor bias,
                                    std::string approximate, bool need_dx, bool need_dbias) {
  check(dy, x, bias);
  Gradients grads(x, bias, need_dx, need_dbias);
  const Rows dys = rows_of(dy), xs = rows_of(x);
  const BackwardArgs args{dys.data(),
                          xs.data(),
                          bias.const_data_ptr(),
                          need_dx ? grads.dx.mutable_data_ptr() : nullptr,
                          xs.n,
                          dys.stride,
                          xs.stride};
  const int element = static_cast<int>(element_of(x));
  const auto rows = kernels().backward[formula(approximate)][element];
  const Chunks chunks(xs.rows);
  const int64_t n = xs.n, size = need_dbias ? chunks.count * n : 0;
  Tensor scratch = allocate(IntHeaderOnlyArrayRef(&size, 1), ScalarType::Double, device_of(x));
  double* const sums = static_cast<double*>(scratch.mutable_data_ptr());
  chunks.each(n, [&](int64_t c, int64_t first, int64_t last) {
    rows(args, first, last, need_dbias ? sums + c * n : nullptr);
  });
  if (need_dbias) {
    void* const to = grads.dbias.mutable_data_ptr();
    parallel(n, chunks.count, [&](int64_t first, int64_t last) {
      kernels().sum_chunks[element](sums, chunks.count, n, first, last, to);
    });
  }
  return {grads.dx, grads.dbias};
}

}  // namespace
}  // namespace fuseline::bias_gelu

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu_bwd", TORCH_BOX(&fuseline::bias_gelu::backward));
}
