// layer_norm's backward: the root-mean-square norm's kernels, centred.
#include "fuseline/cuda/norm/rms_cuda.h"
#include "impl_cuda_bwd.h"

namespace fuseline::layer_norm {

std::tuple<Tensor, Tensor, Tensor> layer_norm_bwd(const Tensor& dy, const Tensor& x,
                                                  std::optional<Tensor> given, Tensor mean,
                                                  Tensor rstd, bool need_dx, bool need_dweight,
                                                  bool need_dbias) {
  check(dy, x, given, mean, rstd);
  need_dweight = need_dweight && given;
  const Device device = device_of(x);
  const DeviceScope scope(device.index);
  const std::optional<Tensor> weight = weight_for(x, given);
  Gradients grads(x, weight, need_dx, need_dweight, need_dbias);
  if (x.sizes()[x.dim() - 1] == 0 || !(need_dx || need_dweight || need_dbias)) {
    return {grads.dx, grads.dweight, grads.dbias};
  }
  rms::BwdProblem p{};
  p.mean = mean.const_data_ptr();
  p.dbias = need_dbias ? grads.dbias.mutable_data_ptr() : nullptr;
  // Without a weight dbias, of the statistics' dtype, tells which of the kernels' types it has.
  const std::optional<Tensor>& parameter = weight || !need_dbias ? weight : grads.dbias;
  p.weight_type = rms::weight_type(x, parameter);
  rms::run_backward<rms::Kind::kCentred>(p, dy, x, weight, rstd, need_dx ? &grads.dx : nullptr,
                                         need_dweight ? &grads.dweight : nullptr);
  const auto back = [&](const Tensor& t) { return given ? as(t, given->scalar_type()) : t; };
  return {grads.dx, back(grads.dweight), back(grads.dbias)};
}

}  // namespace fuseline::layer_norm
