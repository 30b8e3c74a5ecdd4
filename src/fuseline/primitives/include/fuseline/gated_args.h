// What the backends of gated operators, y = f(a) * b, check before they touch memory (raw torch.ops
// calls are public), where a and b lie in one tensor, and the results.
#pragma once

#include <tuple>

#include "fuseline/core/cpp/layout.h"

namespace fuseline::gated {

// A view of one half, 0 or 1, of the last dimension.
inline Tensor half_of(const Tensor& t, int64_t which) {
  const size_t dims = t.sizes().size();
  STD_TORCH_CHECK(dims <= kMaxDim, "at most ", kMaxDim, " dimensions, got ", dims);
  int64_t sizes[kMaxDim];
  std::copy_n(t.sizes().data(), dims, sizes);
  const int64_t n = sizes[dims - 1] /= 2;
  AtenTensorHandle view = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(t.get(), static_cast<int64_t>(dims), sizes, t.strides().data(),
                                     which * n * t.strides()[dims - 1], &view));
  return Tensor(view);
}

// a and b or, of a tensor that has both, [a | b], its halves.
struct Sides {
  Tensor a, b;

  Sides(const NormArgs& args, const Tensor& first, const std::optional<Tensor>& second)
      : a(checked(args, first, second)), b(second ? *second : half_of(first, 1)) {}

 private:
  static Tensor checked(const NormArgs& args, const Tensor& first,
                        const std::optional<Tensor>& second) {
    args.check_tensor(first);
    if (second) {
      args.check_twin("b", *second, first);
      return first;
    }
    const bool even = first.dim() > 0 && first.sizes()[first.dim() - 1] % 2 == 0;
    STD_TORCH_CHECK(even, args.op, ": ", args.x, " has shape ", to_string(first.sizes()),
                    ", expected an even last dimension, which holds a and b, since b is None");
    return half_of(first, 0);
  }
};

inline Tensor allocate_result(const Sides& of, bool packed) {
  return packed ? allocate_like(of.a) : allocate_as(of.a);
}

// The gradients, as the operator gives them, and where those of a and b are written.
struct Gradients {
  std::tuple<Tensor, Tensor> given;
  Tensor da, db;

  explicit Gradients(const Tensor& a)
      : given{allocate_as(a), allocate_as(a)}, da(std::get<0>(given)), db(std::get<1>(given)) {}
  // Both in one, which is `fresh`.
  struct Packed {
    Tensor fresh;
  };
  explicit Gradients(const Packed& packed)
      : given{packed.fresh, allocate_none(packed.fresh)},
        da(half_of(packed.fresh, 0)),
        db(half_of(packed.fresh, 1)) {}
};

}  // namespace fuseline::gated
