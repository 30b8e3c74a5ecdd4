// Torch-aware helpers that every C++ operator shares: row views, counted copies, output allocation.
// LibTorch Stable ABI only, so that one binary serves many torch versions.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/DeviceType.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#ifndef STABLE_TORCH_ERROR_CODE_CHECK  // torch 2.10 has it under another name
#define STABLE_TORCH_ERROR_CODE_CHECK TORCH_ERROR_CODE_CHECK
#endif

namespace fuseline {

using torch::headeronly::DeviceType;
using torch::headeronly::IntHeaderOnlyArrayRef;
using torch::headeronly::ScalarType;
using torch::stable::Tensor;

// In library.cpp, with the process-wide switches and counters that they read.

// A tensor as it was allocated. Memory large enough for huge pages asks for them; in debug mode it
// is filled: deterministic mode's fill does not reach tensors of the shim.
Tensor prepared(const Tensor& fresh);

// Copies `from` to `to`, another tensor of its shape, dtype and device, and counts it. The CUDA
// half says what it copies itself: false leaves a copy to torch.
void copy_into(Tensor& to, const Tensor& from);
void copy_on_cuda_by(bool (*copied)(const Tensor& to, const Tensor& from));

struct Device {
  int32_t type;
  int32_t index;
  bool operator==(const Device& o) const { return type == o.type && index == o.index; }
};

inline Device device_of(const Tensor& t) {
  Device d{};
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(t.get(), &d.type));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(t.get(), &d.index));
  return d;
}

inline std::string to_string(IntHeaderOnlyArrayRef v) {
  std::string s = "[";
  for (size_t i = 0; i < v.size(); ++i) s += (i ? ", " : "") + std::to_string(v[i]);
  return s + "]";
}

inline std::string to_string(Device d) {
  if (d.type == static_cast<int32_t>(DeviceType::CPU)) return "cpu";
  if (d.type == static_cast<int32_t>(DeviceType::CUDA)) return "cuda:" + std::to_string(d.index);
  return "device type " + std::to_string(d.type);
}

inline bool is_strided(const Tensor& t) {
  int32_t layout = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_layout(t.get(), &layout));
  return layout == aoti_torch_layout_strided();
}

// False of a storage that was freed, as FSDP frees parameters, and of torch's zero tensors.
inline bool has_memory(const Tensor& t) { return t.numel() == 0 || t.const_data_ptr() != nullptr; }

// Matrix view of a tensor: all leading dimensions as rows with one stride, the last contiguous.
// Owns the copy where the layout has no such view.
struct Rows {
  Tensor tensor;
  int64_t rows;
  int64_t n;
  int64_t stride;
  int64_t step = 1;  // between the elements of a row
  const void* data() const { return tensor.const_data_ptr(); }
};

// The one stride to which dimensions [first, last) collapse (0 included), if there is one: `alone`
// where they have a single element.
inline std::optional<int64_t> collapsed_stride(const Tensor& t, int64_t first, int64_t last,
                                               int64_t alone) {
  const auto sizes = t.sizes();
  const auto strides = t.strides();
  int64_t stride = alone;
  int64_t count = 1;
  for (int64_t d = last - 1; d >= first; --d) {
    if (sizes[d] == 1) continue;
    if (count == 1) {
      stride = strides[d];
    } else if (strides[d] != stride * count) {
      return std::nullopt;
    }
    count *= sizes[d];
  }
  return stride;
}

// The one row stride of (..., n), if there is one.
inline std::optional<int64_t> row_stride(const Tensor& t) {
  const int64_t last = t.dim() - 1, n = t.sizes()[last];
  if (n > 1 && t.strides()[last] != 1) return std::nullopt;
  return collapsed_stride(t, 0, last, n);
}

// What `allocate` turns to where the shim fails, which gives a code for the exception and its
// words: ATen's own function, which throws what Python knows as torch.OutOfMemoryError.
Tensor allocate_in_aten(IntHeaderOnlyArrayRef sizes, IntHeaderOnlyArrayRef strides,
                        ScalarType dtype, Device device);

// A fresh tensor. The shim allocates without the dispatcher (0.85 us less than empty_like).
inline Tensor allocate(IntHeaderOnlyArrayRef sizes, IntHeaderOnlyArrayRef strides, ScalarType dtype,
                       Device device) {
  AtenTensorHandle handle = nullptr;
  const auto code = aoti_torch_empty_strided(
      static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
      torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype)), device.type,
      device.index, &handle);
  return prepared(code == TORCH_SUCCESS ? Tensor(handle)
                                        : allocate_in_aten(sizes, strides, dtype, device));
}

// The same, contiguous.
inline Tensor allocate(IntHeaderOnlyArrayRef sizes, ScalarType dtype, Device device) {
  constexpr size_t kMaxDim = 64;
  STD_TORCH_CHECK(sizes.size() <= kMaxDim, "at most 64 dimensions, got ", sizes.size());
  std::array<int64_t, kMaxDim> strides;
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= sizes[d] > 0 ? sizes[d] : 1;
  }
  return allocate(sizes, {strides.data(), sizes.size()}, dtype, device);
}

inline Tensor counted_contiguous(const Tensor& t) {
  if (t.is_contiguous()) return t;
  Tensor copy = allocate(t.sizes(), t.scalar_type(), device_of(t));
  copy_into(copy, t);
  return copy;
}

// Whether a kernel of short rows had better read elements that lie `step` apart itself: a copy
// would read the same sectors of memory, or there are few.
inline bool is_read_in_steps(int64_t n, int64_t step, int64_t numel) {
  constexpr int64_t kMostColumns = 4096, kMostStep = 4, kFew = 1 << 16;
  return n <= kMostColumns && (step <= kMostStep || numel <= kFew);
}

// `in_steps`: the caller's kernels read such rows.
inline Rows rows_of(const Tensor& t, bool in_steps = false) {
  const int64_t n = t.sizes()[t.dim() - 1];
  const int64_t numel = t.numel();
  int64_t rows = 1;
  for (int64_t d = 0; d + 1 < t.dim(); ++d) rows *= t.sizes()[d];
  if (numel == 0) return {t, rows, n, n};
  if (const auto stride = row_stride(t)) return {t, rows, n, *stride};
  const int64_t step = t.strides()[t.dim() - 1];
  if (in_steps && is_read_in_steps(n, step, numel)) {
    const auto stride = collapsed_stride(t, 0, t.dim() - 1, n);
    if (stride) return {t, rows, n, *stride, step};
  }
  return {counted_contiguous(t), rows, n, n};
}

// View of a tensor around one dimension, of n elements `step` apart: those before it as one with
// one stride, those after it as one of neighbours. Owns the copy where the layout has no such view.
// With inner == 1 these are rows, and step is 1 unless the caller's kernels read them `in_steps`.
struct Columns {
  Tensor tensor;
  int64_t outer, n, inner;
  int64_t stride, step;
  const void* data() const { return tensor.const_data_ptr(); }
};

inline Columns columns_of(const Tensor& t, int64_t dim, bool in_steps = false) {
  const auto sizes = t.sizes();
  const int64_t dims = t.dim(), n = sizes[dim];
  int64_t outer = 1, inner = 1;
  for (int64_t d = 0; d < dim; ++d) outer *= sizes[d];
  for (int64_t d = dim + 1; d < dims; ++d) inner *= sizes[d];
  if (t.numel() > 0) {
    const auto stride = collapsed_stride(t, 0, dim, n * inner);
    const auto neighbours = collapsed_stride(t, dim + 1, dims, 1);
    const int64_t step = n > 1 ? t.strides()[dim] : inner;
    const bool steps = in_steps && is_read_in_steps(n, step, t.numel());
    if (stride && neighbours == 1 && (inner > 1 || step == 1 || steps)) {
      return {t, outer, n, inner, *stride, step};
    }
  }
  return {counted_contiguous(t), outer, n, inner, n * inner, inner};
}

// Whether the elements lie in memory one after the other, in whatever order of dimensions.
inline bool is_dense(const Tensor& t) {
  const auto sizes = t.sizes();
  const auto strides = t.strides();
  int64_t step = 1;
  for (const int64_t numel = t.numel(); step < numel;) {
    size_t d = 0;
    while (d < sizes.size() && (sizes[d] == 1 || strides[d] != step)) ++d;
    if (d == sizes.size()) return false;
    step *= sizes[d];
  }
  return t.numel() > 0;
}

// A fresh tensor laid out as `t`, without its gaps and repetitions: ATen's empty_like.
inline Tensor allocate_in_layout_of(const Tensor& t) {
  if (is_dense(t)) return allocate(t.sizes(), t.strides(), t.scalar_type(), device_of(t));
  try {
    return prepared(torch::stable::empty_like(t));
  } catch (const std::runtime_error&) {
    allocate(t.sizes(), t.scalar_type(), device_of(t));  // throws what memory is the cause of
    throw;
  }
}

}  // namespace fuseline
