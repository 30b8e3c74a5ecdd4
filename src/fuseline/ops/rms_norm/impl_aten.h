// RMSNorm as ATen calls it (_fused_rms_norm and its backward): any number of normalised dimensions,
// eps of the statistics' type, rstd with a one in place of each, nothing added to the weight.
#pragma once

#include "fuseline/core/cpp/takeover.h"
#include "impl_args.h"

namespace fuseline::rms_norm {

// `t` with its last `count` dimensions as one.
inline Tensor joined(const Tensor& t, size_t count) {
  if (count == 1) return t;
  const auto sizes = t.sizes();
  std::vector<int64_t> shape(sizes.begin(), sizes.end() - count);
  int64_t n = 1;
  for (size_t d = sizes.size() - count; d < sizes.size(); ++d) n *= sizes[d];
  shape.push_back(n);
  return torch::stable::view(counted_contiguous(t), {shape.data(), shape.size()});
}

inline std::optional<Tensor> joined(const std::optional<Tensor>& t, size_t count) {
  return t ? std::optional<Tensor>(joined(*t, count)) : std::nullopt;
}

// Autograd hands an optional tensor that was absent on as one that is not defined.
inline std::optional<Tensor> present(std::optional<Tensor> t) {
  return t && t->defined() ? std::move(t) : std::nullopt;
}

// Undoes `joined` on a result.
inline Tensor like(const Tensor& t, const Tensor& original, size_t count) {
  return count == 1 ? t : torch::stable::view(t, original.sizes());
}

inline Tensor undefined() {
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_new_uninitialized_tensor(&handle));
  return Tensor(handle);
}

inline void check_shape(const char* name, const Tensor& t, const std::vector<int64_t>& shape) {
  const auto sizes = t.sizes();
  bool fits = !shape.empty() && shape.size() <= sizes.size();
  for (size_t i = 0; fits && i < shape.size(); ++i) {
    fits = sizes[sizes.size() - shape.size() + i] == shape[i];
  }
  STD_TORCH_CHECK(fits, "rms_norm: ", name, " has shape ", to_string(sizes),
                  ", expected it to end with normalized_shape, ",
                  to_string({shape.data(), shape.size()}));
}

// The two kernels of one backend, over the backend's own Fwd and Bwd.
template <auto Fwd, auto Bwd>
struct Aten {
  inline static std::atomic<int64_t> fwd_calls{0}, bwd_calls{0};

  static std::tuple<Tensor, Tensor> fwd(const Tensor& input, std::vector<int64_t> shape,
                                        std::optional<Tensor> weight, std::optional<double> eps) {
    check_shape("input", input, shape);
    weight = present(std::move(weight));
    const size_t count = shape.size();
    const double least = input.scalar_type() == ScalarType::Double
                             ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon();
    Tensor rstd = input;
    Tensor y =
        Fwd(joined(input, count), joined(weight, count), eps.value_or(least), 0, &rstd, count);
    fwd_calls.fetch_add(1, std::memory_order_relaxed);
    return {like(y, input, count), rstd};
  }

  static std::tuple<Tensor, Tensor> bwd(const Tensor& dy, const Tensor& input,
                                        std::vector<int64_t> shape, const Tensor& rstd,
                                        std::optional<Tensor> weight, std::vector<bool> mask) {
    check_shape("input", input, shape);
    weight = present(std::move(weight));
    const size_t count = shape.size();
    const bool need_dx = mask.at(0), need_dweight = mask.at(1) && weight;
    auto [dx, dweight] = Bwd(joined(dy, count), joined(input, count), joined(weight, count), rstd,
                             need_dx, need_dweight, 0);
    bwd_calls.fetch_add(1, std::memory_order_relaxed);
    return {need_dx ? like(dx, input, count) : undefined(),
            need_dweight ? like(dweight, *weight, count) : undefined()};
  }
};

}  // namespace fuseline::rms_norm
