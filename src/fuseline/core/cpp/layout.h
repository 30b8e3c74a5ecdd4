// Results that lie in memory as an input does, whatever the order of its dimensions, as torch's own
// elementwise results do.
#pragma once

#include <algorithm>
#include <numeric>

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline {

// A fresh tensor for an elementwise result of `x`: torch.empty_like(x).
inline Tensor allocate_as(const Tensor& x) {
  if (x.is_contiguous()) return allocate(x.sizes(), x.scalar_type(), device_of(x));
  return allocate_in_layout_of(x);
}

// Whether two tensors of one shape have their elements in the same order, without gaps if `b` has
// none.
inline bool lie_alike(const Tensor& a, const Tensor& b) {
  if (a.is_contiguous() && b.is_contiguous()) return true;
  const auto sizes = a.sizes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  }
  return true;
}

// `t` if it lies as `like`, which is dense and of its shape, else a copy that does.
inline Tensor counted_as(const Tensor& t, const Tensor& like) {
  if (lie_alike(t, like)) return t;
  Tensor copy = allocate(t.sizes(), like.strides(), t.scalar_type(), device_of(t));
  copy_into(copy, t);
  return copy;
}

// An order of a tensor's dimensions: that in which they lie in memory, the fastest last, or, by
// default and of a contiguous tensor, their own.
class MemoryOrder {
 public:
  explicit MemoryOrder(int64_t dims) : count_(static_cast<size_t>(dims)) {}
  explicit MemoryOrder(const Tensor& dense) : MemoryOrder(dense.dim()) {
    if (dense.is_contiguous()) return;
    own_ = false;
    std::iota(dims_.begin(), dims_.begin() + count_, size_t{0});
    const auto strides = dense.strides();
    std::stable_sort(dims_.begin(), dims_.begin() + count_,
                     [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  }

  int64_t place_of(int64_t dim) const {
    if (own_) return dim;
    return std::find(dims_.begin(), dims_.begin() + count_, static_cast<size_t>(dim)) -
           dims_.begin();
  }
  // A view of `t` with its dimensions in this order, and that of which `t` is such a view.
  Tensor of(const Tensor& t) const {
    return permuted(t, [&](size_t i) { return i; }, [&](size_t i) { return dims_[i]; });
  }
  Tensor undo(const Tensor& t) const {
    return permuted(t, [&](size_t i) { return dims_[i]; }, [&](size_t i) { return i; });
  }

  // What has one element for each row of `x`, its last dimension: a fresh tensor in this order; one
  // that was filled in it, in the logical order; and the reverse. Contiguous.
  Tensor allocate_one_a_row(const Tensor& x, ScalarType dtype) const {
    if (own_) return fuseline::allocate_one_a_row(x, dtype);
    const MemoryOrder rows = without_last();
    std::vector<int64_t> sizes(rows.count_);
    for (size_t i = 0; i < rows.count_; ++i) sizes[i] = x.sizes()[rows.dims_[i]];
    return allocate({sizes.data(), sizes.size()}, dtype, device_of(x));
  }
  Tensor undo_rows(const Tensor& t) const {
    return own_ ? t : counted_contiguous(without_last().undo(t));
  }
  Tensor of_rows(const Tensor& t) const {
    return counted_contiguous(own_ ? t : without_last().of(t));
  }

  // Where such a contiguous tensor has what belongs to the rows of `x`, in this order: sizes and
  // strides, of as few dimensions as say it; none where that is one after the other.
  std::vector<std::array<int64_t, 2>> places_of_rows(const Tensor& x) const {
    std::vector<std::array<int64_t, 2>> places;
    if (own_) return places;
    const MemoryOrder rows = without_last();
    std::vector<int64_t> steps(rows.count_);
    for (int64_t step = 1, d = static_cast<int64_t>(rows.count_) - 1; d >= 0; --d) {
      steps[d] = step;
      step *= x.sizes()[d];
    }
    for (size_t i = 0; i < rows.count_; ++i) {
      const size_t d = rows.dims_[i];
      if (x.sizes()[d] == 1) continue;
      if (!places.empty() && places.back()[1] == steps[d] * x.sizes()[d]) {
        places.back() = {places.back()[0] * x.sizes()[d], steps[d]};
      } else {
        places.push_back({x.sizes()[d], steps[d]});
      }
    }
    if (places.size() == 1) places.clear();
    return places;
  }

 private:
  MemoryOrder without_last() const {
    MemoryOrder rest(static_cast<int64_t>(count_) - 1);
    rest.own_ = false;
    std::remove_copy(dims_.begin(), dims_.begin() + count_, rest.dims_.begin(), count_ - 1);
    return rest;
  }

  // Dimension from(i) of `t` becomes dimension to(i).
  template <typename To, typename From>
  Tensor permuted(const Tensor& t, const To& to, const From& from) const {
    if (own_) return t;
    std::array<int64_t, kMost> sizes, strides;
    for (size_t i = 0; i < count_; ++i) {
      sizes[to(i)] = t.sizes()[from(i)];
      strides[to(i)] = t.strides()[from(i)];
    }
    AtenTensorHandle view = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch__reinterpret_tensor(
        t.get(), static_cast<int64_t>(count_), sizes.data(), strides.data(), 0, &view));
    return Tensor(view);
  }

  static constexpr size_t kMost = kMaxDim;
  std::array<size_t, kMost> dims_;
  size_t count_;
  bool own_ = true;
};

}  // namespace fuseline
