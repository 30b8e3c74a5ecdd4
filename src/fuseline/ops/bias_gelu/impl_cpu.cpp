// The CPU kernels of the bias_gelu operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::bias_gelu {
namespace {

const Kernels& kernels() { return FUSELINE_BY_ISA(kernels); }

int formula(const std::string& approximate) {
  return static_cast<int>(is_tanh(approximate) ? Formula::tanh : Formula::erf);
}

// Lines of few elements as rows of all of them, with a bias for each column.
void join(Lines& lines, Tensor& bias) {
  const int64_t sizes[] = {lines.biases, lines.n}, strides[] = {1, 0};
  AtenTensorHandle repeated = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(bias.get(), 2, sizes, strides, 0, &repeated));
  Tensor biases = allocate({sizes, 2}, bias.scalar_type(), device_of(bias));
  torch::stable::copy_(biases, Tensor(repeated));
  bias = biases;
  lines = {lines.tensor, lines.rows / lines.biases, bias.numel(), bias.numel()};
}

Tensor forward(const Tensor& x, Tensor bias, std::string approximate) {
  check(x, bias);
  Tensor y = allocate_as(x);
  Lines in = lines_of(x, y);
  constexpr int64_t kFew = 16;
  if (in.biases && in.n < kFew) join(in, bias);
  const ForwardArgs args{in.data(), bias.const_data_ptr(), y.mutable_data_ptr(), in.n, in.stride,
                         in.biases};
  const auto& by = in.biases ? kernels().forward_lines : kernels().forward;
  const auto rows = by[formula(approximate)][static_cast<int>(element_of(x))];
  if (in.n == 0) return y;  // any number of empty rows
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  return y;
}

// dbias = the sums of the rows of `sums`, each as long as it.
void add_up(double* sums, int64_t rows, const Tensor& dbias) {
  const int64_t n = dbias.numel();
  const int element = static_cast<int>(element_of(dbias));
  void* const to = dbias.mutable_data_ptr();
  parallel(n, rows, [&](int64_t first, int64_t last) {
    kernels().sum_chunks[element](sums, rows, n, first, last, to);
  });
}

std::tuple<Tensor, Tensor> backward(const Tensor& dy, const Tensor& x, Tensor bias,
                                    std::string approximate, bool need_dx, bool need_dbias) {
  check(dy, x, bias);
  Gradients grads(x, bias, need_dx, need_dbias);
  const Tensor& like = need_dx ? grads.dx : x;
  const Lines dys = lines_of(dy, like), xs = lines_of(x, like);
  const BackwardArgs args{dys.data(),
                          xs.data(),
                          bias.const_data_ptr(),
                          need_dx ? grads.dx.mutable_data_ptr() : nullptr,
                          xs.n,
                          dys.stride,
                          xs.stride,
                          xs.biases};
  const auto& by = xs.biases ? kernels().backward_lines : kernels().backward;
  const auto rows = by[formula(approximate)][static_cast<int>(element_of(x))];
  const Chunks chunks(xs.rows);
  const int64_t size = !need_dbias ? 0 : xs.biases ? xs.rows : chunks.count * xs.n;
  Tensor scratch = allocate(IntHeaderOnlyArrayRef(&size, 1), ScalarType::Double, device_of(x));
  double* const sums = static_cast<double*>(scratch.mutable_data_ptr());
  if (xs.biases) {
    parallel(xs.rows, xs.n, [&](int64_t first, int64_t last) {
      rows(args, first, last, need_dbias ? sums : nullptr);
    });
  } else {
    chunks.each(xs.n, [&](int64_t c, int64_t first, int64_t last) {
      rows(args, first, last, need_dbias ? sums + c * xs.n : nullptr);
    });
  }
  if (need_dbias) add_up(sums, xs.biases ? xs.rows / xs.biases : chunks.count, grads.dbias);
  return {grads.dx, grads.dbias};
}

}  // namespace
}  // namespace fuseline::bias_gelu

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu_bwd", TORCH_BOX(&fuseline::bias_gelu::backward));
}
