// What every backend of rope checks before it touches memory: raw torch.ops calls are public.
#pragma once

#include <tuple>

#include "fuseline/core/cpp/layout.h"

namespace fuseline::rope {

// What is rotated, (batch, heads, tokens, d) each, in a forward and in a backward.
struct Names {
  const char *q, *k;
};
constexpr Names kForward{"q", "k"}, kBackward{"dq", "dk"};

inline void check_heads(const Tensor& q, const Tensor& k, const Names& names) {
  const NormArgs args{"rope", names.q};
  args.check_tensor(q);
  STD_TORCH_CHECK(q.dim() == 4, "rope: ", names.q, " has shape ", to_string(q.sizes()),
                  ", expected (batch, heads, tokens, d)");
  args.check_kind(names.k, k, q);
  bool fits = k.dim() == 4;
  for (int64_t d : {0, 2, 3}) fits = fits && k.sizes()[d] == q.sizes()[d];
  STD_TORCH_CHECK(fits, "rope: ", names.k, " has shape ", to_string(k.sizes()),
                  ", expected that of ", names.q, " but for the heads, ", to_string(q.sizes()));
}

inline void check_tables(const Tensor& cos, const Tensor& sin, const Tensor& q,
                         const Names& names) {
  const NormArgs args{"rope", names.q};
  args.check_readable("cos", cos);
  args.check_kind_or_float("cos", cos, q);
  const int64_t dims = cos.dim();
  const auto sizes = cos.sizes();
  bool fits = dims >= 2 && dims <= 4 && (dims < 4 || sizes[2] == 2);
  fits = fits && sizes[dims == 2 ? 0 : 1] == q.sizes()[2] && sizes[dims - 1] >= 1 &&
         2 * sizes[dims - 1] <= q.sizes()[3];
  fits = fits && (dims == 2 || sizes[0] == 1 || sizes[0] == q.sizes()[0]);
  STD_TORCH_CHECK(
      fits, "rope: cos has shape ", to_string(sizes),
      ", expected (tokens, pairs), (batch, tokens, pairs) or (batch, tokens, 2, pairs) of "
      "1 to d / 2 pairs, for ",
      names.q, " of shape ", to_string(q.sizes()));
  NormArgs{"rope", "cos"}.check_twin("sin", sin, cos);
}

inline void check(const Tensor& q, const Tensor& k, const Tensor& cos, const Tensor& sin,
                  const Names& names) {
  check_heads(q, k, names);
  check_tables(cos, sin, q, names);
}

// A table in a type that kernels take beside q's: fp64 has none for tables of fp32.
inline Tensor table_for(const Tensor& q, const Tensor& table) {
  return q.scalar_type() == ScalarType::Double ? as(table, ScalarType::Double) : table;
}

// Where a table has its numbers: from `first` on, `steps` apart by batch, token, element of a pair
// and pair. One for all batches, or for both elements, has them 0 apart.
struct Table {
  int64_t first, steps[4];
};

// `swapped`: of a pair the second element first, as the sines turn back.
inline Table table_of(const Tensor& t, bool swapped) {
  const auto steps = t.strides();
  const int64_t dims = t.dim(), apart = dims == 4 ? steps[2] : 0;
  const bool shared = dims == 2 || t.sizes()[0] == 1;
  return {
      swapped ? apart : 0,
      {shared ? 0 : steps[0], steps[dims == 2 ? 0 : 1], swapped ? -apart : apart, steps[dims - 1]}};
}

}  // namespace fuseline::rope
