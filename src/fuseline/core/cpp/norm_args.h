// What the backends of a norm over rows check before they touch memory (raw torch.ops calls are
// public), and the outputs they allocate.
#pragma once

#include "tensor.h"

namespace fuseline {

// The dtype of the statistics: fp64 for fp64, else fp32.
inline ScalarType stat_dtype(ScalarType x) {
  return x == ScalarType::Double ? ScalarType::Double : ScalarType::Float;
}

inline const char* dtype_of(const Tensor& t) {
  return torch::headeronly::toString(t.scalar_type());
}

// torch's own limit where it copies or iterates.
constexpr int64_t kMaxDim = 64;

inline bool is_supported(ScalarType t) {
  return t == ScalarType::Double || t == ScalarType::Float || t == ScalarType::Half ||
         t == ScalarType::BFloat16;
}

inline bool same_sizes(IntHeaderOnlyArrayRef a, IntHeaderOnlyArrayRef b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) return false;
  }
  return true;
}

inline bool broadcasts_to(IntHeaderOnlyArrayRef from, IntHeaderOnlyArrayRef to) {
  if (from.size() > to.size()) return false;
  const size_t lead = to.size() - from.size();
  for (size_t d = 0; d < from.size(); ++d) {
    if (from[d] != to[lead + d] && from[d] != 1) return false;
  }
  return true;
}

// The sizes of x but the last.
inline IntHeaderOnlyArrayRef sizes_of_rows(const Tensor& x) {
  return {x.sizes().data(), x.sizes().size() - 1};
}

// Whether `t` has the sizes of x but the last, and perhaps ones after them.
inline bool has_one_a_row(IntHeaderOnlyArrayRef t, IntHeaderOnlyArrayRef x) {
  const size_t rows = x.size() - 1;
  if (t.size() < rows) return false;
  for (size_t d = 0; d < t.size(); ++d) {
    if (t[d] != (d < rows ? x[d] : 1)) return false;
  }
  return true;
}

// The checks of one operator; `x` is what its rows are called in the messages.
struct NormArgs {
  const char* op;
  const char* x = "x";

  void check_readable(const char* name, const Tensor& t) const {
    STD_TORCH_CHECK(t.defined(), op, ": ", name, " is None, expected a tensor");
    STD_TORCH_CHECK(is_strided(t), op, ": ", name, " must be a dense strided tensor");
    STD_TORCH_CHECK(has_memory(t), op, ": ", name, " has elements, but its memory was freed");
  }

  void check_tensor(const Tensor& t) const {
    check_readable(x, t);
    STD_TORCH_CHECK(is_supported(t.scalar_type()), op, ": ", x,
                    " must be float64, float32, float16 or bfloat16, got ", dtype_of(t));
    STD_TORCH_CHECK(t.dim() <= kMaxDim, op, ": ", x, " has ", t.dim(),
                    " dimensions, expected at most ", kMaxDim);
  }

  void check_rows(const Tensor& rows) const {
    check_tensor(rows);
    STD_TORCH_CHECK(rows.dim() >= 1, op, ": ", x,
                    " must have at least one dimension, got a scalar");
  }

  // The same along one dimension, which comes back counted from the first.
  void check_along(const Tensor& t, int64_t& dim) const {
    check_rows(t);
    const int64_t dims = t.dim();
    STD_TORCH_CHECK(-dims <= dim && dim < dims, op, ": dim is ", dim, ", expected one of ", -dims,
                    " to ", dims - 1);
    if (dim < 0) dim += dims;
  }

  // Refuses a tensor `name` that is not of the dtype and device of the rows.
  void check_kind(const char* name, const Tensor& t, const Tensor& rows) const {
    check_readable(name, t);
    STD_TORCH_CHECK(t.scalar_type() == rows.scalar_type(), op, ": ", name,
                    " must have the dtype of ", x, ", ", dtype_of(rows), ", got ", dtype_of(t));
    check_device(name, t, rows);
  }

  // The same, and their shape.
  void check_twin(const char* name, const Tensor& t, const Tensor& rows) const {
    check_kind(name, t, rows);
    STD_TORCH_CHECK(same_sizes(t.sizes(), rows.sizes()), op, ": ", name, " has shape ",
                    to_string(t.sizes()), ", expected that of ", x, ", ", to_string(rows.sizes()));
  }

  // Refuses a tensor `name` that does not broadcast to the rows.
  void check_broadcast(const char* name, const Tensor& t, const Tensor& rows) const {
    check_readable(name, t);
    STD_TORCH_CHECK(broadcasts_to(t.sizes(), rows.sizes()), op, ": ", name, " has shape ",
                    to_string(t.sizes()), ", expected one that broadcasts to that of ", x, ", ",
                    to_string(rows.sizes()));
  }

  // Refuses one of another device, or of another dtype than that of the rows and fp32.
  void check_kind_or_float(const char* name, const Tensor& t, const Tensor& rows) const {
    STD_TORCH_CHECK(t.scalar_type() == rows.scalar_type() || t.scalar_type() == ScalarType::Float,
                    op, ": ", name, " must have the dtype of ", x, " or float32, got ",
                    dtype_of(t));
    check_device(name, t, rows);
  }

  // Refuses what has not one element a row.
  void check_one_a_row(const char* name, const Tensor& t, const Tensor& rows,
                       ScalarType dtype) const {
    check_readable(name, t);
    STD_TORCH_CHECK(t.scalar_type() == dtype, op, ": ", name, " must be ",
                    torch::headeronly::toString(dtype), ", got ", dtype_of(t));
    STD_TORCH_CHECK(same_sizes(t.sizes(), sizes_of_rows(rows)), op, ": ", name, " has shape ",
                    to_string(t.sizes()), ", expected that of ", x, " without its last dimension");
    check_device(name, t, rows);
  }

  // `weight`, or what `name` says, comes back contiguous.
  void check_weight(std::optional<Tensor>& weight, const Tensor& rows,
                    const char* name = "weight") const {
    if (!weight) return;
    const int64_t n = rows.sizes()[rows.dim() - 1];
    check_readable(name, *weight);
    STD_TORCH_CHECK(weight->dim() == 1 && weight->sizes()[0] == n, op, ": ", name, " has shape ",
                    to_string(weight->sizes()), ", expected [", n, "], the last dimension of ", x);
    check_kind_or_float(name, *weight, rows);
    weight = counted_contiguous(*weight);
  }

  // `t`, a statistic `name` of each row, comes back contiguous.
  void check_statistic(const char* name, Tensor& t, const Tensor& rows) const {
    check_readable(name, t);
    STD_TORCH_CHECK(has_one_a_row(t.sizes(), rows.sizes()), op, ": ", name, " has shape ",
                    to_string(t.sizes()), ", expected that of ", x, " without its last dimension");
    STD_TORCH_CHECK(t.scalar_type() == stat_dtype(rows.scalar_type()), op, ": ", name,
                    " must be float32, or float64 for a float64 ", x, ", got ", dtype_of(t));
    check_device(name, t, rows);
    t = counted_contiguous(t);
  }

 private:
  void check_device(const char* name, const Tensor& t, const Tensor& rows) const {
    STD_TORCH_CHECK(device_of(t) == device_of(rows), op, ": ", name, " is on ",
                    to_string(device_of(t)), ", ", x, " is on ", to_string(device_of(rows)));
  }
};

inline Tensor allocate_like(const Tensor& x) {
  return allocate(x.sizes(), x.scalar_type(), device_of(x));
}

inline Tensor allocate_one_a_row(const Tensor& x, ScalarType dtype) {
  return allocate(sizes_of_rows(x), dtype, device_of(x));
}

// One a row, with so many ones after the rows' own dimensions: ATen's have them.
inline Tensor allocate_statistic(const Tensor& x, size_t ones = 0) {
  const auto sizes = x.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end() - 1);
  shape.resize(shape.size() + ones, 1);
  return allocate({shape.data(), shape.size()}, stat_dtype(x.scalar_type()), device_of(x));
}

inline Tensor as(const Tensor& t, ScalarType dtype) {
  return t.scalar_type() == dtype ? t : torch::stable::to(t, dtype);
}

// The weight in a type that kernels take: fp64 rows have no kernels for one of fp32, which is as
// exact in fp64.
inline std::optional<Tensor> weight_for(const Tensor& x, const std::optional<Tensor>& weight) {
  const bool wide = weight && x.scalar_type() == ScalarType::Double;
  return wide ? as(*weight, ScalarType::Double) : weight;
}

// The stand-in for a gradient that was not requested.
inline Tensor allocate_none(const Tensor& x) {
  const int64_t zero = 0;
  return allocate(IntHeaderOnlyArrayRef(&zero, 1), x.scalar_type(), device_of(x));
}

}  // namespace fuseline
