// What fuseline.jax calls on a GPU, by name, through the handlers that it compiles against jaxlib.
#include "fuseline/cuda/launch/cuda_rows.h"
#include "fuseline/cuda/norm/rms_cuda_launch.h"
#include "fuseline/element.h"
#include "fuseline/jax/kernels.h"

namespace fuseline::rms_norm {
namespace {

constexpr ScalarType kDtypes[] = {ScalarType::Double, ScalarType::Float, ScalarType::Half,
                                  ScalarType::BFloat16};

bool is_offered(int element, int weight_element) {
  const bool wide = element == static_cast<int>(Element::f64);
  return weight_element == element || (weight_element == static_cast<int>(Element::f32) && !wide);
}

const char* told(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

// What the problems of both directions have.
template <typename Problem>
void set(Problem& p, const jax::Launch& launch, bool same, const void* x, const void* weight,
         int64_t rows, int64_t n) {
  p.x = x;
  p.weight = weight;
  p.weight_type = same ? rms::WeightType::kSame : rms::WeightType::kFloat;
  p.rows = rows;
  p.x_stride = n;
  p.n = n;
  p.stream = static_cast<cudaStream_t>(launch.stream);
}

cudaError_t count_sms(int& sms) {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  return cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
}

cudaError_t allocate(const jax::Launch& launch, size_t bytes, void*& out) {
  if (bytes == 0) return cudaSuccess;
  out = launch.allocate(launch.allocator, bytes);
  return out ? cudaSuccess : cudaErrorMemoryAllocation;
}

const char* forward(const jax::Launch& launch, int element, int weight_element, const void* x,
                    const void* weight, void* y, void* rstd, int64_t rows, int64_t n, double eps) {
  if (!is_offered(element, weight_element)) return jax::kNoKernel;
  if (rows == 0) return nullptr;
  rms::FwdProblem p{};
  p.y = y;
  p.rstd = rstd;
  p.eps = eps;
  p.allocate = [&](int64_t bytes) { return launch.allocate(launch.allocator, bytes); };
  set(p, launch, weight_element == element, x, weight, rows, n);
  return told(for_dtype(kDtypes[element], [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    return rms::launch_fwd<T, false>(p);
  }));
}

const char* backward(const jax::Launch& launch, int element, int weight_element, const void* dy,
                     const void* x, const void* weight, const void* rstd, void* dx, void* dweight,
                     int64_t rows, int64_t n) {
  if (!is_offered(element, weight_element)) return jax::kNoKernel;
  rms::BwdProblem p{};
  p.dy = dy;
  p.dy_stride = n;
  p.rstd = rstd;
  p.dx = dx;
  p.dweight = dweight;
  set(p, launch, weight_element == element, x, weight, rows, n);
  if (auto error = count_sms(p.sms)) return told(error);
  return told(for_dtype(kDtypes[element], [&](auto* t) {
    using T = std::remove_pointer_t<decltype(t)>;
    using Statistic = std::conditional_t<std::is_same_v<T, double>, double, float>;
    const int64_t sums = rms::bwd_sums<T, rms::Kind::kPlain>(p);
    if (auto error = allocate(launch, sums * sizeof(double), p.sums)) return error;
    p.parts = rms::bwd_parts<T, rms::Kind::kPlain>(p);
    if (auto error = allocate(launch, p.parts * n * sizeof(Statistic), p.partial)) return error;
    return rms::launch_bwd<T, rms::Kind::kPlain>(p);
  }));
}

}  // namespace
}  // namespace fuseline::rms_norm

FUSELINE_EXPORT fuseline::jax::RmsNormFwd* fuseline_rms_norm_fwd_cuda = fuseline::rms_norm::forward;
FUSELINE_EXPORT fuseline::jax::RmsNormBwd* fuseline_rms_norm_bwd_cuda =
    fuseline::rms_norm::backward;
