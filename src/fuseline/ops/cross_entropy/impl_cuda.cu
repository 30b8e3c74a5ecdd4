// The CUDA kernels of the cross_entropy operators.
#include "fuseline/cuda/launch/row_tensors.cuh"
#include "impl_args.h"
#include "impl_cuda_total.cuh"

namespace fuseline::cross_entropy {
namespace {

template <typename S>
S* data_of(const Tensor& t) {
  return static_cast<S*>(t.mutable_data_ptr());
}
template <typename S>
const S* data_of(const std::optional<Tensor>& t) {
  return t ? static_cast<const S*>(t->const_data_ptr()) : nullptr;
}

template <typename S>
Problem<S> problem_of(const Tensor& target, const std::optional<Tensor>& weight,
                      const Tensor& stats, const Options& o) {
  const double softcap = o.softcap_in<S>(), inverse = softcap > 0 ? 1 / softcap : 0;
  return {static_cast<const int64_t*>(target.const_data_ptr()),
          data_of<S>(weight),
          o.ignore_index,
          static_cast<S>(o.smoothing),
          static_cast<S>(o.z_loss),
          static_cast<S>(softcap),
          static_cast<S>(inverse),
          data_of<S>(stats)};
}

template <typename Op>
ArgsOf<Op> args_of(const Rows& rows) {
  STD_TORCH_CHECK(rows.rows <= std::numeric_limits<int32_t>::max(), kArgs.op, ": logits has ",
                  rows.rows, " rows, expected at most 2^31 - 1");
  ArgsOf<Op> a{};
  a.in[0] = static_cast<const typename Op::T*>(rows.data());
  a.stride[0] = rows.stride;
  a.rows = rows.rows;
  a.n = rows.n;
  return a;
}

std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& logits, Tensor target,
                                           std::optional<Tensor> weight, int64_t ignore_index,
                                           std::string reduction, double smoothing, double z_loss,
                                           std::optional<double> softcap) {
  const Options options(ignore_index, reduction, smoothing, z_loss, softcap);
  check(logits, target, weight);
  const Device device = device_of(logits);
  const DeviceScope scope(device.index);
  const cudaStream_t stream = current_stream(device.index);
  const Rows rows = rows_of(logits);
  const Results to(logits, options);
  for_dtype(logits.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using S = Stat<T>;
    using Op = Forward<T>;
    const Op op{{}, problem_of<S>(target, weight, to.stats, options), data_of<S>(to.losses)};
    FUSELINE_CUDA_CHECK(launch(args_of<Op>(rows), op, stream));
    const OfRows<S> of{op.losses, op.problem.target, ignore_index};
    S* const loss = options.reduction == kNone ? nullptr : data_of<S>(to.loss);
    const Totals<S> totals{loss, data_of<double>(to.total), options.reduction == kMean,
                           op.problem.weight, rows.n};
    FUSELINE_CUDA_CHECK(launch(of, rows.rows, totals, stream, rows::Scratch(device)));
  });
  return {to.loss, to.stats, to.total};
}

Tensor loss(const Tensor& logits, Tensor target, std::optional<Tensor> weight, int64_t ignore_index,
            std::string reduction, double smoothing, double z_loss, std::optional<double> softcap) {
  return std::get<0>(
      forward(logits, target, weight, ignore_index, reduction, smoothing, z_loss, softcap));
}

// Writes the gradient of the rows to rows of memory, `apart` elements from each other.
void write_gradient(Tensor dloss, const Rows& rows, Tensor target, std::optional<Tensor> weight,
                    Tensor stats, Tensor total, const Options& options, void* dlogits,
                    int64_t apart) {
  check_bwd(dloss, rows.tensor, target, weight, stats, total, options);
  const Device device = device_of(rows.tensor);
  const DeviceScope scope(device.index);
  for_dtype(rows.tensor.scalar_type(), [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using S = Stat<T>;
    using Op = Backward<T>;
    const Op op{{},
                problem_of<S>(target, weight, stats, options),
                data_of<S>(dloss),
                options.reduction == kNone,
                data_of<double>(total),
                options.reduction == kMean,
                apart};
    auto a = args_of<Op>(rows);
    a.out.of[0] = static_cast<T*>(dlogits);
    FUSELINE_CUDA_CHECK(launch(a, op, current_stream(device.index)));
  });
}

Tensor backward(const Tensor& dloss, const Tensor& logits, const Tensor& target,
                const std::optional<Tensor>& weight, const Tensor& stats, const Tensor& total,
                int64_t ignore_index, std::string reduction, double smoothing, double z_loss,
                std::optional<double> softcap) {
  const Options options(ignore_index, reduction, smoothing, z_loss, softcap);
  kArgs.check_rows(logits);
  const Rows rows = rows_of(logits);
  const Tensor dlogits = allocate_like(logits);
  write_gradient(dloss, rows, target, weight, stats, total, options, dlogits.mutable_data_ptr(),
                 rows.n);
  return dlogits;
}

void backward_in_place(const Tensor& dloss, const Tensor& logits, const Tensor& target,
                       const std::optional<Tensor>& weight, const Tensor& stats,
                       const Tensor& total, int64_t ignore_index, std::string reduction,
                       double smoothing, double z_loss, std::optional<double> softcap) {
  const Options options(ignore_index, reduction, smoothing, z_loss, softcap);
  const Rows rows = writable_rows(logits);
  write_gradient(dloss, rows, target, weight, stats, total, options, logits.mutable_data_ptr(),
                 rows.stride);
}

}  // namespace
}  // namespace fuseline::cross_entropy

STABLE_TORCH_LIBRARY_IMPL(fuseline, CUDA, m) {
  m.impl("cross_entropy", TORCH_BOX(&fuseline::cross_entropy::loss));
  m.impl("_cross_entropy", TORCH_BOX(&fuseline::cross_entropy::loss));
  m.impl("_cross_entropy_fwd", TORCH_BOX(&fuseline::cross_entropy::forward));
  m.impl("_cross_entropy_bwd", TORCH_BOX(&fuseline::cross_entropy::backward));
  m.impl("_cross_entropy_bwd_", TORCH_BOX(&fuseline::cross_entropy::backward_in_place));
}
