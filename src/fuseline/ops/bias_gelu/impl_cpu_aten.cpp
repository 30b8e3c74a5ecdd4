// GELU as ATen calls it, without a bias (gelu and gelu_backward): the tanh formula on a CPU.
// docs/decisions/0005-the-fusion-suite.md says why the other stays ATen's.
#include "fuseline/core/cpp/aten.h"
#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rows_cpu.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::bias_gelu {

FUSELINE_CPU_KERNELS(Kernels)

namespace {

std::atomic<int64_t> fwd_calls{0}, bwd_calls{0};

// Where there is no bias there are no columns: elements as they lie in memory, in rows of so many.
constexpr int64_t kRow = 1024;
alignas(64) const double kNoBias[kRow] = {};  // 0 in every dtype

// rows(first element, row length, first row, last row) for all elements: full rows, then the rest.
template <typename F>
void in_rows(int64_t numel, const F& rows) {
  const int64_t full = numel / kRow, rest = numel % kRow;
  parallel(full + (rest > 0), kRow, [&](int64_t first, int64_t last) {
    rows(0, kRow, first, std::min(last, full));
    if (last > full) rows(full * kRow, rest, 0, 1);
  });
}

template <typename T>
T* at(T* data, int64_t element, const Tensor& t) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(data) + element * static_cast<int64_t>(t.element_size());
}

bool serves(const Tensor& x, const std::string& approximate) {
  return approximate == "tanh" && is_supported(x.scalar_type()) && is_dense(x);
}

bool lies_as(const Tensor& dy, const Tensor& x) {
  return dy.scalar_type() == x.scalar_type() && same_sizes(dy.sizes(), x.sizes()) &&
         ((dy.is_contiguous() && x.is_contiguous()) || same_sizes(dy.strides(), x.strides()));
}

Tensor place_for(const Tensor& x) {
  return x.is_contiguous() ? allocate_like(x) : allocate_in_layout_of(x);
}

Tensor gelu(const Tensor& x, std::string approximate) {
  if (!serves(x, approximate)) {
    return aten::by_aten("gelu", "out", x.scalar_type(), x, approximate);
  }
  const Tensor y = place_for(x);
  const auto rows =
      kernels().forward[static_cast<int>(Formula::tanh)][static_cast<int>(element_of(x))];
  in_rows(x.numel(), [&](int64_t element, int64_t n, int64_t first, int64_t last) {
    rows({at(x.const_data_ptr(), element, x), kNoBias, at(y.mutable_data_ptr(), element, y), n, n},
         first, last);
  });
  fwd_calls.fetch_add(1, std::memory_order_relaxed);
  return y;
}

Tensor gelu_backward(const Tensor& dy, const Tensor& x, std::string approximate) {
  if (!serves(x, approximate) || !lies_as(dy, x)) {
    const auto dtype = aten::call<ScalarType>("result_type", "Tensor", dy, x);
    return aten::by_aten("gelu_backward", "grad_input", dtype, dy, x, approximate);
  }
  const Tensor dx = place_for(x);
  const auto rows =
      kernels().backward[static_cast<int>(Formula::tanh)][static_cast<int>(element_of(x))];
  in_rows(x.numel(), [&](int64_t element, int64_t n, int64_t first, int64_t last) {
    rows({at(dy.const_data_ptr(), element, dy), at(x.const_data_ptr(), element, x), kNoBias,
          at(dx.mutable_data_ptr(), element, dx), n, n, n},
         first, last, nullptr);
  });
  bwd_calls.fetch_add(1, std::memory_order_relaxed);
  return dx;
}

Takeover takeover("gelu", "CPU",
                  {{"gelu", TORCH_BOX(&gelu), &fwd_calls},
                   {"gelu_backward", TORCH_BOX(&gelu_backward), &bwd_calls}});

}  // namespace
}  // namespace fuseline::bias_gelu
