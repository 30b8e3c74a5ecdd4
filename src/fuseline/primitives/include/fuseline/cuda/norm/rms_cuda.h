// The root-mean-square norm on a GPU around the kernels: dtypes, the stream, scratch memory. The
// operator that includes this instantiates the launches, one translation unit a dtype.
#pragma once

#include <tuple>

#include "fuseline/core/cpp/norm_args.h"
#include "fuseline/cuda/launch/cuda_rows.h"
#include "fuseline/cuda/norm/rms_cuda_launch.h"

namespace fuseline::rms {

inline WeightType weight_type(const Tensor& x, const std::optional<Tensor>& weight) {
  return weight && weight->scalar_type() != x.scalar_type() ? WeightType::kFloat
                                                            : WeightType::kSame;
}

inline const void* data_or_null(const std::optional<Tensor>& t) {
  return t ? t->const_data_ptr() : nullptr;
}

// Buffer for what blocks exchange through memory; none, which costs nothing, where nothing is.
inline std::optional<Tensor> allocate_sums(int64_t count, Device device) {
  if (count == 0) return std::nullopt;
  return allocate(IntHeaderOnlyArrayRef(&count, 1), ScalarType::Double, device);
}

// Writes y and rstd unless its pointer is null; with a residual (ADDS), new_residual as well.
// If SCALES, y is in e4m3 and divided by `scale`, and x is not fp64.
template <bool ADDS, bool SCALES = false>
void forward(const Tensor& x, const Tensor* residual, const std::optional<Tensor>& given,
             double eps, double weight_offset, const Tensor* new_residual, const Tensor& y,
             const Tensor* rstd, const Tensor* scale = nullptr) {
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  const Rows view = rows_of(x, true);
  if (view.rows == 0 || (view.n == 0 && !rstd)) return;
  const std::optional<Tensor> weight = weight_for(x, given);
  FwdProblem p{};
  p.x = view.data();
  p.weight = data_or_null(weight);
  p.y = y.mutable_data_ptr();
  p.rstd = rstd ? rstd->mutable_data_ptr() : nullptr;
  p.rows = view.rows;
  p.x_stride = view.stride;
  p.x_step = view.step;
  p.n = view.n;
  p.eps = eps;
  p.weight_offset = weight_offset;
  p.weight_type = weight_type(x, weight);
  p.stream = current_stream(device.index);
  std::optional<Rows> other;
  if constexpr (ADDS) {
    other = rows_of(*residual, true);
    p.residual = other->data();
    p.residual_stride = other->stride;
    p.residual_step = other->step;
    p.new_residual = new_residual->mutable_data_ptr();
  }
  std::optional<Tensor> scratch;
  p.allocate = [&](int64_t bytes) {
    scratch = allocate_sums((bytes + 7) / 8, device);
    return scratch->mutable_data_ptr();
  };
  if constexpr (SCALES) p.scale = static_cast<const float*>(scale->const_data_ptr());
  FUSELINE_CUDA_CHECK(for_dtype<!SCALES>(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    using Y = std::conditional_t<SCALES, e4m3, T>;
    return launch_fwd<T, ADDS, Y>(p);
  }));
}

// Writes dx and dweight where their pointers are not null; what a kind has besides is in `p`.
template <Kind KIND>
void run_backward(BwdProblem& p, const Tensor& dy, const Tensor& x,
                  const std::optional<Tensor>& weight, const Tensor& rstd, const Tensor* dx,
                  const Tensor* dweight) {
  const Device device = device_of(x);
  const Rows view = rows_of(x), grad = rows_of(dy);
  p.dy = grad.data();
  p.x = view.data();
  p.weight = data_or_null(weight);
  p.rstd = rstd.const_data_ptr();
  p.dx = dx ? dx->mutable_data_ptr() : nullptr;
  p.dweight = dweight ? dweight->mutable_data_ptr() : nullptr;
  p.rows = view.rows;
  p.dy_stride = grad.stride;
  p.x_stride = view.stride;
  p.n = view.n;
  p.sms = sm_count(device.index);
  p.stream = current_stream(device.index);
  FUSELINE_CUDA_CHECK(for_dtype(x.scalar_type(), [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    const auto sums = allocate_sums(bwd_sums<T, KIND>(p), device);
    p.sums = sums ? sums->mutable_data_ptr() : nullptr;
    p.parts = bwd_parts<T, KIND>(p);
    std::optional<Tensor> partial;
    if (const int64_t planes = (p.dweight != nullptr) + (p.dbias != nullptr)) {
      const int64_t sizes[] = {planes, p.parts, p.n};
      partial = allocate(IntHeaderOnlyArrayRef(sizes, 3), stat_dtype(x.scalar_type()), device);
      p.partial = partial->mutable_data_ptr();
    }
    return launch_bwd<T, KIND>(p);
  }));
}

// dx (plus `added`, if ADDS and there is one) and dweight, each empty if not requested.
template <bool ADDS>
std::tuple<Tensor, Tensor> backward(const Tensor& dy, const std::optional<Tensor>& added,
                                    const Tensor& x, const std::optional<Tensor>& given,
                                    const Tensor& rstd, bool need_dx, bool need_dweight,
                                    double weight_offset) {
  need_dweight = need_dweight && given;
  const DeviceScope scope(device_of(x).index);
  const std::optional<Tensor> weight = weight_for(x, given);
  Tensor dx = need_dx ? allocate_like(x) : allocate_none(x);
  Tensor dweight = need_dweight ? allocate_like(*weight) : allocate_none(x);
  if (x.sizes()[x.dim() - 1] == 0 || !(need_dx || need_dweight)) return {dx, dweight};

  BwdProblem p{};
  p.weight_offset = weight_offset;
  p.weight_type = weight_type(x, weight);
  std::optional<Rows> addends;
  if (ADDS && added && need_dx) {
    addends = rows_of(*added);
    p.added = addends->data();
    p.added_stride = addends->stride;
  }
  run_backward<kind_of(ADDS)>(p, dy, x, weight, rstd, need_dx ? &dx : nullptr,
                              need_dweight ? &dweight : nullptr);
  return {dx, need_dweight ? as(dweight, given->scalar_type()) : dweight};
}

}  // namespace fuseline::rms
