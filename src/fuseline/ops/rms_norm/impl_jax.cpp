// What fuseline.jax calls on a CPU, by name, through the handlers that it compiles against jaxlib.
#include <memory>

#include "fuseline/core/cpp/isa.h"
#include "fuseline/cpu/rms_rows.h"
#include "fuseline/cpu/rows_cpu.h"
#include "fuseline/jax/kernels.h"

namespace fuseline::rms_norm {

FUSELINE_CPU_KERNELS(rms::Kernels)

namespace {

const char* forward(const jax::Launch&, int element, int weight_element, const void* x,
                    const void* weight, void* y, void* rstd, int64_t rows, int64_t n, double eps) {
  if (const char* const why = why_no_isa()) return why;
  const rms::ForwardRows kernel = kernels().forward[element][weight_element];
  if (!kernel) return jax::kNoKernel;
  rms::ForwardArgs args{};
  args.x = x;
  args.weight = weight;
  args.y = y;
  args.rstd = rstd;
  args.n = n;
  args.x_stride = n;
  args.eps = eps;
  parallel(rows, n, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  return nullptr;
}

const char* backward(const jax::Launch&, int element, int weight_element, const void* dy,
                     const void* x, const void* weight, const void* rstd, void* dx, void* dweight,
                     int64_t rows, int64_t n) {
  if (const char* const why = why_no_isa()) return why;
  const rms::Kernels& table = kernels();
  const rms::BackwardRows kernel = table.backward[element][weight_element];
  if (!kernel) return jax::kNoKernel;
  const Chunks chunks(rows);
  const std::unique_ptr<double[]> sums(new double[chunks.count * n]);
  const rms::BackwardArgs args{dy, nullptr, x, weight, rstd, dx, n, n, 0, n, 0};
  chunks.each(n, [&](int64_t c, int64_t first, int64_t last) {
    kernel(args, first, last, sums.get() + c * n);
  });
  const rms::ReduceColumns reduce = table.reduce[weight_element];
  parallel(n, chunks.count, [&](int64_t first, int64_t last) {
    reduce(sums.get(), chunks.count, n, first, last, dweight);
  });
  return nullptr;
}

}  // namespace
}  // namespace fuseline::rms_norm

FUSELINE_EXPORT fuseline::jax::RmsNormFwd* fuseline_rms_norm_fwd_cpu = fuseline::rms_norm::forward;
FUSELINE_EXPORT fuseline::jax::RmsNormBwd* fuseline_rms_norm_bwd_cpu = fuseline::rms_norm::backward;
