// What every backend of cross_entropy checks before it touches memory (raw torch.ops calls are
// public), and what its loss is made of.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "fuseline/core/cpp/norm_args.h"

namespace fuseline::cross_entropy {

constexpr NormArgs kArgs{"cross_entropy", "logits"};

enum Reduction { kNone, kMean, kSum };

struct Options {
  int64_t ignore_index;
  Reduction reduction;
  double smoothing, z_loss, softcap;  // softcap 0: none

  Options(int64_t ignore_index, const std::string& reduced, double smoothing, double z_loss,
          std::optional<double> cap)
      : ignore_index(ignore_index),
        reduction(reduced == "none"   ? kNone
                  : reduced == "mean" ? kMean
                                      : kSum),
        smoothing(smoothing),
        z_loss(z_loss),
        softcap(cap.value_or(0)) {
    STD_TORCH_CHECK(reduction != kSum || reduced == "sum", kArgs.op, ": reduction is ", reduced,
                    ", expected none, mean or sum");
    STD_TORCH_CHECK(0 <= smoothing && smoothing <= 1, kArgs.op, ": label_smoothing is ", smoothing,
                    ", expected 0 to 1");
    STD_TORCH_CHECK(0 <= z_loss && std::isfinite(z_loss), kArgs.op, ": z_loss is ", z_loss,
                    ", expected a finite number >= 0");
    STD_TORCH_CHECK(!cap || (0 < softcap && std::isfinite(softcap)), kArgs.op, ": softcap is ",
                    softcap, ", expected a finite number > 0, or None");
  }

  // At least the smallest normal number of the type that is computed in, where less would be none.
  template <class S>
  double softcap_in() const {
    return softcap > 0 ? std::max<double>(softcap, std::numeric_limits<S>::min()) : 0;
  }
};

// The target comes back contiguous and of int64, the weight contiguous and of the dtype that is
// computed in.
inline void check(const Tensor& logits, Tensor& target, std::optional<Tensor>& weight) {
  kArgs.check_rows(logits);
  const int64_t n = logits.sizes()[logits.dim() - 1];
  STD_TORCH_CHECK(0 < n && n <= std::numeric_limits<int32_t>::max(), kArgs.op,
                  ": logits has shape ", to_string(logits.sizes()),
                  ", expected 1 to 2^31 - 1 classes");
  kArgs.check_readable("target", target);
  const bool narrow = target.scalar_type() == ScalarType::Int;
  kArgs.check_one_a_row("target", target, logits, narrow ? ScalarType::Int : ScalarType::Long);
  target = counted_contiguous(as(target, ScalarType::Long));
  kArgs.check_weight(weight, logits);
  if (weight) weight = as(*weight, stat_dtype(logits.scalar_type()));
}

constexpr int64_t kStats = 2, kTotals = 2;  // saved for each row, and in all

// The sizes of the logits with `kStats` in place of the last.
inline std::vector<int64_t> sizes_of_stats(const Tensor& logits) {
  const auto rows = sizes_of_rows(logits);
  std::vector<int64_t> sizes(rows.data(), rows.data() + rows.size());
  sizes.push_back(kStats);
  return sizes;
}

inline void check_shape(const char* name, const Tensor& t, IntHeaderOnlyArrayRef sizes,
                        ScalarType dtype, const Tensor& logits) {
  kArgs.check_readable(name, t);
  STD_TORCH_CHECK(t.scalar_type() == dtype && same_sizes(t.sizes(), sizes), kArgs.op, ": ", name,
                  " is ", dtype_of(t), " of shape ", to_string(t.sizes()), ", expected ",
                  torch::headeronly::toString(dtype), " of shape ", to_string(sizes));
  STD_TORCH_CHECK(device_of(t) == device_of(logits), kArgs.op, ": ", name, " is on ",
                  to_string(device_of(t)), ", logits is on ", to_string(device_of(logits)));
}

// dloss, stats and total, what the forward gave, come back contiguous.
inline void check_bwd(Tensor& dloss, const Tensor& logits, Tensor& target,
                      std::optional<Tensor>& weight, Tensor& stats, Tensor& total,
                      const Options& options) {
  check(logits, target, weight);
  const ScalarType dtype = stat_dtype(logits.scalar_type());
  const auto rows = sizes_of_rows(logits);
  const IntHeaderOnlyArrayRef one(rows.data(), size_t{0});
  check_shape("dloss", dloss, options.reduction == kNone ? rows : one, dtype, logits);
  const auto sizes = sizes_of_stats(logits);
  check_shape("stats", stats, {sizes.data(), sizes.size()}, dtype, logits);
  check_shape("total", total, {&kTotals, 1}, ScalarType::Double, logits);
  dloss = counted_contiguous(dloss);
  stats = counted_contiguous(stats);
  total = counted_contiguous(total);
}

// The rows of logits over which their gradient can be written.
inline Rows writable_rows(const Tensor& logits) {
  kArgs.check_rows(logits);
  Rows rows = rows_of(logits);
  const bool apart = rows.rows < 2 || rows.stride >= rows.n;
  STD_TORCH_CHECK(apart && rows.data() == logits.const_data_ptr(), kArgs.op,
                  ": logits has strides ", to_string(logits.strides()),
                  ", expected rows of neighbours, with one stride and apart, to write over");
  return rows;
}

// What a forward gives: the loss, reduced or not; of each row the largest logit and the logarithm
// of the sum of exponentials relative to it; the sum of the targets' weights and that of all.
struct Results {
  Tensor loss, losses, stats, total;

  Results(const Tensor& logits, const Options& options)
      : loss(allocate_loss(logits, options)),
        losses(options.reduction == kNone ? loss : allocate_one_a_row(logits, loss.scalar_type())),
        stats(allocate_stats(logits)),
        total(allocate({&kTotals, 1}, ScalarType::Double, device_of(logits))) {}

 private:
  static Tensor allocate_loss(const Tensor& logits, const Options& options) {
    const ScalarType dtype = stat_dtype(logits.scalar_type());
    if (options.reduction == kNone) return allocate_one_a_row(logits, dtype);
    return allocate({logits.sizes().data(), size_t{0}}, dtype, device_of(logits));
  }
  static Tensor allocate_stats(const Tensor& logits) {
    const auto sizes = sizes_of_stats(logits);
    return allocate({sizes.data(), sizes.size()}, stat_dtype(logits.scalar_type()),
                    device_of(logits));
  }
};

}  // namespace fuseline::cross_entropy
