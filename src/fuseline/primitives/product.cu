// Products by cuBLASLt with what is fused into their epilogues, and their gradients.
#include <tuple>

#include "fuseline/activation_backward.h"
#include "fuseline/core/cpp/cuda.h"
#include "fuseline/cublaslt_plan.h"

namespace fuseline::product {
namespace {

using namespace cublaslt;

// One matrix or a batch of them as memory has it: row-major with `ld` between rows, or the
// transpose of that. Owns the copy of what is neither.
struct Operand {
  Tensor tensor;
  int64_t batch, rows, columns, ld, batch_stride;
  bool transposed;

  Operand t() const { return {tensor, batch, columns, rows, ld, batch_stride, !transposed}; }
  const void* data() const { return tensor.const_data_ptr(); }
};

// The last two dimensions, and those before them as rows, too, or (`batched`) as a batch.
Operand operand_of(const Tensor& t, bool batched) {
  const int64_t last = t.dim() - 1, columns = t.sizes()[last], along = t.strides()[last];
  const int64_t first = batched ? last - 1 : 0;  // of the rows
  int64_t batch = 1, rows = 1;
  for (int64_t d = 0; d < last; ++d) (d < first ? batch : rows) *= t.sizes()[d];
  const auto down = collapsed_stride(t, first, last, columns);
  const auto apart = collapsed_stride(t, 0, first, 0);
  if (down && apart) {
    if ((columns == 1 || along == 1) && *down >= columns) {
      return {t, batch, rows, columns, *down, *apart, false};
    }
    if ((rows == 1 || *down == 1) && (columns == 1 || along >= rows)) {
      return {t, batch, rows, columns, columns == 1 ? rows : along, *apart, true};
    }
  }
  return {counted_contiguous(t), batch, rows, columns, columns, rows * columns, false};
}

uint32_t alignment_of(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  uint32_t bytes = 256;
  while (address % bytes) bytes /= 2;
  return bytes;
}

// What an epilogue reads: contiguous, and at a multiple of 16 bytes.
Tensor at_packs(const Tensor& t) {
  if (t.is_contiguous() && alignment_of(t.const_data_ptr()) >= 16) return t;
  Tensor copy = allocate(t.sizes(), t.scalar_type(), device_of(t));
  copy_into(copy, t);
  return copy;
}

Type type_of(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::Double:
      return Type::f64;
    case ScalarType::Float:
      return Type::f32;
    case ScalarType::Half:
      return Type::f16;
    case ScalarType::BFloat16:
      return Type::bf16;
    default:
      STD_TORCH_CHECK(false, "_product: a has a dtype that it does not take");
  }
  return Type::f32;
}

void check_like(const char* name, const Tensor& t, const Tensor& a) {
  STD_TORCH_CHECK(is_strided(t), "_product: ", name, " has another layout than torch.strided");
  STD_TORCH_CHECK(t.scalar_type() == a.scalar_type(), "_product: ", name,
                  " has another dtype than a");
  STD_TORCH_CHECK(device_of(t) == device_of(a), "_product: ", name, " is on ",
                  to_string(device_of(t)), ", expected ", to_string(device_of(a)));
  STD_TORCH_CHECK(has_memory(t), "_product: ", name, " has elements, but its memory was freed");
}

// b is a matrix, or has a's batches.
void check_factors(const Tensor& a, const Tensor& b) {
  STD_TORCH_CHECK(library(), "_product: torch has not mapped libcublasLt");
  check_like("a", a, a);
  check_like("b", b, a);
  const auto of_a = a.sizes(), of_b = b.sizes();
  const int64_t dims = a.dim(), last = b.dim() - 1;
  bool fits = dims > 1 && last > 0 && of_b[last - 1] == of_a[dims - 1];
  if (fits && last > 1) {
    fits = last + 1 == dims;
    for (int64_t d = 0; fits && d + 1 < last; ++d) fits = of_b[d] == of_a[d];
  }
  STD_TORCH_CHECK(fits, "_product: b has shape ", to_string(of_b), ", a ", to_string(of_a));
  STD_TORCH_CHECK(a.numel() > 0 && b.numel() > 0, "_product: a or b is empty");
}

std::vector<int64_t> sizes_of_product(const Tensor& a, const Tensor& b) {
  const auto sizes = a.sizes();
  std::vector<int64_t> of_y(sizes.begin(), sizes.end());
  of_y.back() = b.sizes()[b.dim() - 1];
  return of_y;
}

// What the epilogue reads or writes beside y: a bias or sums, and what GELU was of.
struct Beside {
  const void* bias = nullptr;
  const void* aux = nullptr;
};

// y = a b, contiguous.
void multiply(Tensor& y, const Operand& a, const Operand& b, uint32_t epilogue, Beside beside,
              bool tf32) {
  const Library& l = *library();
  const Device device = device_of(y);
  const Problem p{a.batch,
                  a.rows,
                  b.columns,
                  a.columns,
                  a.ld,
                  b.ld,
                  a.batch_stride,
                  b.batch_stride,
                  alignment_of(a.data()),
                  alignment_of(b.data()),
                  device.index,
                  static_cast<int64_t>(type_of(y)),
                  a.transposed,
                  b.transposed,
                  epilogue,
                  tf32};
  Handle handle = nullptr;
  require(l.blas_handle(&handle), "torch's handle");
  Plan& plan = plan_of(l, handle, p);
  if (beside.bias) plan.set_bias(beside.bias);
  if (beside.aux) plan.set_aux(beside.aux);
  const size_t bytes = plan.found.workspace;
  const auto words = static_cast<int64_t>((bytes + 3) / 4);
  const Tensor workspace = allocate({&words, 1}, ScalarType::Float, device);
  const double one64 = 1, zero64 = 0;
  const float one32 = 1, zero32 = 0;
  const bool f64 = y.scalar_type() == ScalarType::Double;
  const void* const one = f64 ? static_cast<const void*>(&one64) : &one32;
  const void* const zero = f64 ? static_cast<const void*>(&zero64) : &zero32;
  require(l.matmul(handle, plan.desc.value, one, b.data(), plan.a.value, a.data(), plan.b.value,
                   zero, y.const_data_ptr(), plan.d.value, y.mutable_data_ptr(), plan.d.value,
                   &plan.found.algorithm, bytes ? workspace.mutable_data_ptr() : nullptr, bytes,
                   current_stream(device.index)),
          "the product");
}

Tensor none_of(const Tensor& t) {
  const int64_t zero = 0;
  return allocate({&zero, 1}, t.scalar_type(), device_of(t));
}

// activation(a b + bias) of "none", "relu", "gelu" (by tanh) or "gelu_aux", which also gives what
// GELU was of, in rows of a multiple of 8 elements.
std::tuple<Tensor, Tensor> product(const Tensor& a, const Tensor& b, std::optional<Tensor> bias,
                                   std::string activation, bool tf32) {
  check_factors(a, b);
  const bool saves = activation == "gelu_aux";
  const int64_t n = b.sizes()[b.dim() - 1];
  uint32_t epilogue = activation == "relu" ? kRelu : activation == "none" ? 0 : kGelu;
  STD_TORCH_CHECK(epilogue != kGelu || saves || activation == "gelu", "_product: activation is '",
                  activation, "', expected none, relu, gelu or gelu_aux");
  STD_TORCH_CHECK(!saves || n % 8 == 0, "_product: gelu_aux of ", n, " columns");
  const DeviceScope scope(device_of(a).index);
  Beside beside;
  std::optional<Tensor> held;
  if (bias) {
    check_like("bias", *bias, a);
    STD_TORCH_CHECK(bias->dim() == 1 && bias->sizes()[0] == n, "_product: bias has shape ",
                    to_string(bias->sizes()), ", expected [", n, "]");
    held = at_packs(*bias);
    beside.bias = held->const_data_ptr();
    epilogue |= kBias;
  }
  const auto of_y = sizes_of_product(a, b);
  Tensor y = allocate({of_y.data(), of_y.size()}, a.scalar_type(), device_of(a));
  Tensor h = saves ? allocate(y.sizes(), y.scalar_type(), device_of(y)) : none_of(a);
  if (saves) {
    beside.aux = h.mutable_data_ptr();
    epilogue |= kAux;
  }
  const bool batched = b.dim() > 2;
  multiply(y, operand_of(a, batched), operand_of(b, batched), epilogue ? epilogue : kNone, beside,
           tf32);
  return {y, h};
}

// Of b's shape, and its columns contiguous if b's are: a Linear's weight is a transposed b, and
// autograd copies a gradient that does not lie as its leaf.
Tensor gradient_of(const Tensor& b, bool transposed) {
  const auto sizes = b.sizes();
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  const size_t last = sizes.size() - 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    const size_t to = transposed && d + 1 >= last ? 2 * last - 1 - d : d;
    strides[to] = step;
    step *= sizes[to];
  }
  return allocate(sizes, {strides.data(), strides.size()}, b.scalar_type(), device_of(b));
}

// The transpose is contiguous, and b is not.
bool is_transposed(const Tensor& b) {
  if (b.is_contiguous()) return false;
  const Operand of = operand_of(b, true);
  return of.transposed && of.ld == of.rows &&
         (of.batch == 1 || of.batch_stride == of.rows * of.columns);
}

// The gradients of a, b and bias that are wanted. `saved`: y of "relu", what GELU was of for "tanh"
// and "none"; "" for no activation. dbias is left empty where no pass or epilogue gives it.
std::tuple<Tensor, Tensor, Tensor> product_backward(const Tensor& dy, const Tensor& a,
                                                    const Tensor& b, std::optional<Tensor> saved,
                                                    std::string activation, bool need_da,
                                                    bool need_db, bool need_dbias, bool tf32) {
  check_factors(a, b);
  check_like("dy", dy, a);
  const auto of_y = sizes_of_product(a, b);
  STD_TORCH_CHECK(dy.sizes() == IntHeaderOnlyArrayRef(of_y.data(), of_y.size()),
                  "_product: dy has shape ", to_string(dy.sizes()));
  STD_TORCH_CHECK(activation.empty() || saved, "_product: saved is None");
  const DeviceScope scope(device_of(a).index);
  Tensor da = none_of(a), db = none_of(a), dbias = none_of(a), g = dy;
  if (saved) {
    std::tie(g, dbias) = bias_gelu::activation_backward(dy, *saved, activation, need_dbias);
  }
  const bool batched = b.dim() > 2;
  const Operand of_g = operand_of(g, batched), of_b = operand_of(b, batched);
  if (need_da) {
    da = allocate(a.sizes(), a.scalar_type(), device_of(a));
    multiply(da, of_g, of_b.t(), kNone, {}, tf32);
  }
  if (need_db) {
    const bool transposed = is_transposed(b);
    const Operand of_a = operand_of(a, batched);
    uint32_t epilogue = kNone;
    Beside beside;
    // What is summed must lie so that the sums are of neighbours in memory.
    if (need_dbias && !saved && !batched && !of_g.transposed) {
      dbias = allocate({&of_g.columns, 1}, a.scalar_type(), device_of(a));
      beside.bias = dbias.mutable_data_ptr();
      epilogue = transposed ? kSumsOfA : kSumsOfB;
    }
    db = gradient_of(b, transposed);
    if (transposed) {
      multiply(db, of_g.t(), of_a, epilogue, beside, tf32);
    } else {
      multiply(db, of_a.t(), of_g, epilogue, beside, tf32);
    }
  }
  return {da, db, dbias};
}

}  // namespace
}  // namespace fuseline::product

extern "C" __attribute__((visibility("default"))) bool fuseline_has_cublaslt() {
  return fuseline::cublaslt::library() != nullptr;
}

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) {
  m.def(
      "_product(Tensor a, Tensor b, Tensor? bias, str activation, bool tf32) -> (Tensor, Tensor)");
  m.def(
      "_product_bwd(Tensor dy, Tensor a, Tensor b, Tensor? saved, str activation, bool need_da, "
      "bool need_db, bool need_dbias, bool tf32) -> (Tensor, Tensor, Tensor)");
}

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("_product", TORCH_BOX(&fuseline::product::product));
  m.impl("_product_bwd", TORCH_BOX(&fuseline::product::product_backward));
}
