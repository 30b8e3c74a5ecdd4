// What the stand-ins for ATen's operators share: its arguments as our kernels take them, results as
// it gives them, and calls that are left to it.
#pragma once

#include <array>
#include <utility>

#include "fuseline/core/cpp/norm_args.h"
#include "takeover.h"

// Since torch 2.13: what the shim's last failure said.
extern "C" __attribute__((weak)) const char* torch_exception_get_what_without_backtrace();

namespace fuseline::aten {

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

// Undoes `joined` on a result.
inline Tensor like(const Tensor& t, const Tensor& original, size_t count) {
  return count == 1 ? t : torch::stable::view(t, original.sizes());
}

// Autograd hands an optional tensor that was absent on as one that is not defined.
inline std::optional<Tensor> present(std::optional<Tensor> t) {
  return t && t->defined() ? std::move(t) : std::nullopt;
}

inline Tensor undefined() {
  AtenTensorHandle handle = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_new_uninitialized_tensor(&handle));
  return Tensor(handle);
}

// Refuses an input that does not end with normalized_shape, and a parameter of another shape.
inline void check_normalized(const char* op, const Tensor& input, const std::vector<int64_t>& shape,
                             const std::optional<Tensor>& weight,
                             const std::optional<Tensor>& bias = std::nullopt) {
  const IntHeaderOnlyArrayRef expected{shape.data(), shape.size()};
  const auto sizes = input.sizes();
  const bool fits = !shape.empty() && shape.size() <= sizes.size() &&
                    same_sizes({sizes.end() - shape.size(), shape.size()}, expected);
  STD_TORCH_CHECK(fits, op, ": input has shape ", to_string(sizes),
                  ", expected it to end with normalized_shape, ", to_string(expected));
  const auto check = [&](const char* name, const std::optional<Tensor>& t) {
    STD_TORCH_CHECK(!t || same_sizes(t->sizes(), expected), op, ": ", name, " has shape ",
                    to_string(t->sizes()), ", expected normalized_shape, ", to_string(expected));
  };
  check("weight", weight);
  check("bias", bias);
}

// Calls an operator of ATen's; its first result.
template <typename Result, typename... Args>
Result call(const std::string& op, const char* overload, const Args&... args) {
  namespace values = torch::stable::detail;
  std::array<StableIValue, sizeof...(args)> stack{values::from(args)...};
  const bool failed = torch_call_dispatcher(("aten::" + op).c_str(), overload, stack.data(),
                                            TORCH_ABI_VERSION) != TORCH_SUCCESS;
  const auto what = torch_exception_get_what_without_backtrace;
  STD_TORCH_CHECK(!failed, "aten::", op, ": ", what ? what() : "torch refused this call");
  return values::to<Result>(stack[0]);
}

// ATen's own result, of `dtype`, for a call that we do not serve: the overload of a structured
// operator that takes its output has a registration of its own, and gives an empty one the shape
// and the strides of the functional call.
template <typename... Args>
Tensor by_aten(const char* op, const char* overload, ScalarType dtype, const Tensor& input,
               const Args&... others) {
  const int64_t none = 0;
  const Tensor out = allocate(IntHeaderOnlyArrayRef(&none, 1), dtype, device_of(input));
  return call<Tensor>(op, overload, input, others..., out);
}

}  // namespace fuseline::aten
