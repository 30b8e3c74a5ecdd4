// The CPU kernels of the bias_gelu operators.
#include <tuple>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_args.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::bias_gelu {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

int formula(const std::string& approximate) {
  return static_cast<int>(is_tanh(approximate) ? Formula::tanh : Formula::erf);
}

// A view of `bias` in two dimensions, copied.
Tensor repeated(const Tensor& bias, std::array<int64_t, 2> sizes, std::array<int64_t, 2> strides) {
  AtenTensorHandle view = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(bias.get(), 2, sizes.data(), strides.data(), 0, &view));
  Tensor biases = allocate({sizes.data(), 2}, bias.scalar_type(), device_of(bias));
  torch::stable::copy_(biases, Tensor(view));
  return biases;
}

// Lines of few elements as rows of all of them, with a bias for each column.
void join(Lines& lines, Tensor& bias) {
  bias = repeated(bias, {lines.biases, lines.n}, {1, 0});
  lines = {lines.tensor, lines.rows / lines.biases, bias.numel(), bias.numel()};
}

// So many rows of few elements as one, and the rows that are left at the end.
struct Joint {
  int64_t times = 1, left = 0;

  // `lines` follow each other without gaps; those that come here as one have the same shape.
  Joint(std::initializer_list<Lines*> lines, Tensor& bias) {
    constexpr int64_t kJoined = 64, kWorth = 4096;  // elements: the bias is copied
    const Lines first = **lines.begin();
    if (first.biases || first.n == 0 || first.n >= kFew || first.rows * first.n < kWorth) return;
    for (const Lines* l : lines) {
      if (l->stride != l->n) return;
    }
    times = kJoined / first.n;
    left = first.rows % times;
    bias = repeated(bias, {times, first.n}, {0, 1});
    for (Lines* l : lines) *l = {l->tensor, l->rows / times, l->n * times, l->n * times};
  }
};

// What follows so many elements.
const void* after(const void* data, int64_t elements, const Tensor& t) {
  return static_cast<const char*>(data) + elements * static_cast<int64_t>(t.element_size());
}
void* after(void* data, int64_t elements, const Tensor& t) {
  return const_cast<void*>(after(static_cast<const void*>(data), elements, t));
}

Tensor forward(const Tensor& x, Tensor bias, std::string approximate) {
  check(x, bias);
  Tensor y = allocate_as(x);
  Lines in = lines_of(x, y);
  const Joint joint({&in}, bias);
  if (in.biases && in.n < kFew) join(in, bias);
  const ForwardArgs args{in.data(), bias.const_data_ptr(), y.mutable_data_ptr(), in.n, in.stride,
                         in.biases};
  const auto& by = in.biases ? kernels().forward_lines : kernels().forward;
  const auto rows = by[formula(approximate)][static_cast<int>(element_of(x))];
  if (in.n == 0) return y;  // any number of empty rows
  parallel(in.rows, in.n, [&](int64_t first, int64_t last) { rows(args, first, last); });
  if (joint.left) {
    ForwardArgs rest = args;
    rest.x = after(args.x, in.rows * in.n, x);
    rest.y = after(args.y, in.rows * in.n, x);
    rest.n = joint.left * (in.n / joint.times);
    rows(rest, 0, 1);
  }
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
  Gradients grads(x, bias.numel(), need_dx, need_dbias);
  const Tensor& like = need_dx ? grads.dx : x;
  Lines dys = lines_of(dy, like), xs = lines_of(x, like);
  const Joint joint({&xs, &dys}, bias);
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
  const int64_t n = xs.n, left = joint.left * (n / joint.times);
  const int64_t size = !need_dbias ? 0 : xs.biases ? xs.rows : chunks.count * n + left;
  Tensor scratch = allocate(IntHeaderOnlyArrayRef(&size, 1), ScalarType::Double, device_of(x));
  double* const sums = static_cast<double*>(scratch.mutable_data_ptr());
  if (xs.biases) {
    parallel(xs.rows, xs.n, [&](int64_t first, int64_t last) {
      rows(args, first, last, need_dbias ? sums : nullptr);
    });
  } else {
    chunks.each(n, [&](int64_t c, int64_t first, int64_t last) {
      rows(args, first, last, need_dbias ? sums + c * n : nullptr);
    });
  }
  if (left) {
    BackwardArgs rest = args;
    rest.dy = after(args.dy, xs.rows * n, x);
    rest.x = after(args.x, xs.rows * n, x);
    if (args.dx) rest.dx = after(args.dx, xs.rows * n, x);
    rest.n = left;
    rows(rest, 0, 1, need_dbias ? sums + chunks.count * n : nullptr);
  }
  const int64_t of_columns = chunks.count * joint.times + joint.left;
  if (need_dbias) add_up(sums, xs.biases ? xs.rows / xs.biases : of_columns, grads.dbias);
  return {grads.dx, grads.dbias};
}

}  // namespace
}  // namespace fuseline::bias_gelu

// op.py repeats them for installations without this binary.
STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def("bias_gelu(Tensor x, Tensor bias, str approximate) -> Tensor");
  m.def("_bias_gelu(Tensor x, Tensor bias, str approximate) -> Tensor");
  m.def(
      "_bias_gelu_bwd(Tensor dy, Tensor x, Tensor bias, str approximate, bool need_dx, "
      "bool need_dbias) -> (Tensor, Tensor)");
  // The gradient through an activation that is part of a product, and of the bias before it.
  m.def(
      "_activation_bwd(Tensor dy, Tensor x, str activation, bool need_dbias) -> (Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CPU, m) {
  m.impl("bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu", TORCH_BOX(&fuseline::bias_gelu::forward));
  m.impl("_bias_gelu_bwd", TORCH_BOX(&fuseline::bias_gelu::backward));
}
