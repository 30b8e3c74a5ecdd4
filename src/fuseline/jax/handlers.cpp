// The handlers that XLA calls. Compiled on first use against the jaxlib that is installed.
#include <string>
#include <utility>

#include "kernels.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using fuseline::jax::Launch;

struct Kernels {
  fuseline::jax::RmsNormFwd* forward;
  fuseline::jax::RmsNormBwd* backward;
};

Kernels on_cpu{}, on_cuda{};

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

ffi::Error done(const char* wrong) {
  return wrong ? ffi::Error::InvalidArgument(std::string("rms_norm: ") + wrong)
               : ffi::Error::Success();
}

ffi::Error forward(const Kernels& kernels, const Launch& launch, ffi::AnyBuffer x,
                   ffi::AnyBuffer weight, ffi::Result<ffi::AnyBuffer> y,
                   ffi::Result<ffi::AnyBuffer> rstd, double eps) {
  const int element = element_of(x), of_weight = element_of(weight);
  if (element < 0 || of_weight < 0) return done(fuseline::jax::kNoKernel);
  return done(kernels.forward(launch, element, of_weight, x.untyped_data(), weight.untyped_data(),
                              y->untyped_data(), rstd->untyped_data(), rstd->element_count(),
                              x.dimensions().back(), eps));
}

ffi::Error backward(const Kernels& kernels, const Launch& launch, ffi::AnyBuffer dy,
                    ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::AnyBuffer rstd,
                    ffi::Result<ffi::AnyBuffer> dx, ffi::Result<ffi::AnyBuffer> dweight) {
  const int element = element_of(x), of_weight = element_of(weight);
  if (element < 0 || of_weight < 0) return done(fuseline::jax::kNoKernel);
  return done(kernels.backward(launch, element, of_weight, dy.untyped_data(), x.untyped_data(),
                               weight.untyped_data(), rstd.untyped_data(), dx->untyped_data(),
                               dweight->untyped_data(), rstd.element_count(),
                               x.dimensions().back()));
}

void* allocate(void* scratch, size_t bytes) {
  constexpr size_t kAlignment = 16;  // XLA refuses more, and gives 256
  return static_cast<ffi::ScratchAllocator*>(scratch)
      ->Allocate(bytes, kAlignment)
      .value_or(nullptr);
}

using Stream = ffi::PlatformStream<void*>;

const auto forward_cpu = [](auto... args) { return forward(on_cpu, {}, args...); };
const auto backward_cpu = [](auto... args) { return backward(on_cpu, {}, args...); };
const auto forward_cuda = [](void* stream, ffi::ScratchAllocator scratch, auto... args) {
  return forward(on_cuda, {stream, &scratch, allocate}, args...);
};
const auto backward_cuda = [](void* stream, ffi::ScratchAllocator scratch, auto... args) {
  return backward(on_cuda, {stream, &scratch, allocate}, args...);
};

// The arguments and results of each direction, after what a platform adds.
template <typename Binding>
auto of_forward(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Attr<double>("eps");
}

template <typename Binding>
auto of_backward(Binding binding) {
  return std::move(binding)
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Arg<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>()
      .template Ret<ffi::AnyBuffer>();
}

}  // namespace

// The kernels' addresses in fuseline's binary, before any call; a GPU's are null where it has none.
extern "C" void fuseline_set_kernels(fuseline::jax::RmsNormFwd* fwd_cpu,
                                     fuseline::jax::RmsNormBwd* bwd_cpu,
                                     fuseline::jax::RmsNormFwd* fwd_cuda,
                                     fuseline::jax::RmsNormBwd* bwd_cuda) {
  on_cpu = {fwd_cpu, bwd_cpu};
  on_cuda = {fwd_cuda, bwd_cuda};
}

XLA_FFI_DEFINE_HANDLER_SYMBOL(fuseline_jax_rms_norm_fwd_cpu, forward_cpu,
                              of_forward(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(fuseline_jax_rms_norm_bwd_cpu, backward_cpu,
                              of_backward(ffi::Ffi::Bind()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fuseline_jax_rms_norm_fwd_cuda, forward_cuda,
    of_forward(ffi::Ffi::Bind().Ctx<Stream>().Ctx<ffi::ScratchAllocator>()));
XLA_FFI_DEFINE_HANDLER_SYMBOL(
    fuseline_jax_rms_norm_bwd_cuda, backward_cuda,
    of_backward(ffi::Ffi::Bind().Ctx<Stream>().Ctx<ffi::ScratchAllocator>()));
