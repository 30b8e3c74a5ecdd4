// The handlers that XLA calls. Compiled on first use against the jaxlib that is installed.
#include "kernels.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

fuseline::jax::RmsNormFwd* forward_kernel = nullptr;
fuseline::jax::RmsNormBwd* backward_kernel = nullptr;

// The number that kernels.h gives an element, or -1.
int element_of(const ffi::AnyBuffer& buffer) {
  switch (buffer.element_type()) {
    case ffi::DataType::F64:
      return 0;
    case ffi::DataType::F32:
      return 1;
    case ffi::DataType::F16:
      return 2;
    case ffi::DataType::BF16:
      return 3;
    default:
      return -1;
  }
}

ffi::Error done(bool offered) {
  return offered ? ffi::Error::Success()
                 : ffi::Error::InvalidArgument("rms_norm: no kernel for these dtypes");
}

ffi::Error forward(ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::Result<ffi::AnyBuffer> y,
                   ffi::Result<ffi::AnyBuffer> rstd, double eps) {
  const int element = element_of(x), of_weight = element_of(weight);
  if (element < 0 || of_weight < 0) return done(false);
  return done(forward_kernel(element, of_weight, x.untyped_data(), weight.untyped_data(),
                             y->untyped_data(), rstd->untyped_data(), rstd->element_count(),
                             x.dimensions().back(), eps));
}

ffi::Error backward(ffi::AnyBuffer dy, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::AnyBuffer rstd,
                    ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> dweight) {
  const int element = element_of(x), of_weight = element_of(weight);
  if (element < 0 || of_weight < 0) return done(false);
  return done(backward_kernel(element, of_weight, dy.untyped_data(), x.untyped_data(),
                              weight.untyped_data(), rstd.untyped_data(), dx->untyped_data(),
                              dweight->untyped_data(), rstd.element_count(),
                              x.dimensions().back()));
}

}  // namespace

// The kernels' addresses in fuseline's binary, before any call.
extern "C" void fuseline_set_kernels(fuseline::jax::RmsNormFwd* fwd,
                                     fuseline::jax::RmsNormBwd* bwd) {
  forward_kernel = fwd;
  backward_kernel = bwd;
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(fuseline_jax_rms_norm_fwd, forward,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<double>("eps"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(fuseline_jax_rms_norm_bwd, backward,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>());
