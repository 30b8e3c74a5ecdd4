// Which kernel rows get: the launches of row_launch.cuh and column_launch.cuh as they are, on a GPU
// that is only pretended. regimes.py has replaced the kernels' bodies by what records their names.
#include <string>

#include "emulator.h"

namespace regimes {

// An H100 or H200. Where the library asks how many clusters such a GPU holds, the answer decides no
// more than from how many rows on they are persistent.
constexpr int kSms = 132, kShared = 227 << 10;

const char* kernel = "";  // the one that was launched last, with its template's arguments
std::string launched;     // all kernels of one call, a line each

// Defined below, where the arguments' types are known.
template <typename... Arguments>
void record(int threads, int cluster, const Arguments&... arguments);

// What `kernel<<<grid, threads, bytes, stream>>>` is called.
template <typename... Parameters>
auto on(void (*called)(Parameters...), dim3, int threads, int, cudaStream_t) {
  return [=](const Parameters&... arguments) {
    called(arguments...);
    record(threads, 1, arguments...);
  };
}
template <typename... Parameters, typename... Arguments>
cudaError_t launch(const cudaLaunchConfig_t* config, void (*called)(Parameters...),
                   const Arguments&... arguments) {
  const auto& how = *config->attrs;
  called(arguments...);
  record(static_cast<int>(config->blockDim.x),
         how.id == cudaLaunchAttributeClusterDimension ? static_cast<int>(how.val.clusterDim.x) : 1,
         arguments...);
  return cudaSuccess;
}

inline cudaError_t device(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? kSms : kShared;
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t compiled(cudaFuncAttributes* attributes, Kernel*) {
  *attributes = {};
  attributes->ptxVersion = 90;
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t blocks(int* held, Kernel*, int, int shared) {
  return *held = shared <= kShared / 2 ? 2 : 1, cudaSuccess;
}
template <typename Kernel>
cudaError_t clusters(int* held, Kernel*, const cudaLaunchConfig_t* config) {
  const auto size = static_cast<int>(config->attrs->val.clusterDim.x);
  return *held = config->dynamicSmemBytes <= kShared ? kSms / size : 0, cudaSuccess;
}

}  // namespace regimes

// In place of what emulator.h says of no GPU.
#define cudaLaunchKernelEx regimes::launch
#define cudaDeviceGetAttribute regimes::device
#define cudaFuncGetAttributes regimes::compiled
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor regimes::blocks
#define cudaOccupancyMaxActiveClusters regimes::clusters

#include "fuseline/cuda/columns/column_launch.cuh"
#include "fuseline/cuda/norm/rms_cuda_rows.cuh"
#include "fuseline/cuda/rows/softmax_cuda.cuh"
#include "ops/horizontal_reduction_pointwise/impl_cuda_rows.cuh"
#include "ops/horizontal_reduction_reduction/impl_cuda_rows.cuh"
#include "ops/layer_norm/impl_cuda_rows.cuh"
#include "ops/masked_softmax/impl_cuda_rows.cuh"
#include "ops/norm_chain/impl_cuda_rows.cuh"

namespace regimes {

using namespace fuseline;

// Of a kernel's arguments those that say how a row is shared: threads or columns, or its pieces.
std::string said(int number) { return " number=" + std::to_string(number); }
std::string said(const rows::ColumnBlock& block) {
  return " depth=" + std::to_string(block.depth) +
         " together=" + std::to_string(1 << block.together);
}
std::string said(const rows::SlicePlan& plan) {
  return " pieces=" + std::to_string(plan.pieces) + " piece=" + std::to_string(plan.piece);
}
std::string said(const rows::LongPlan& plan) {
  return " pieces=" + std::to_string(plan.pieces) + " piece=" + std::to_string(plan.piece);
}
std::string said(const rows::GridPlan& plan) { return said(plan.row); }
template <typename Other>
std::string said(const Other&) {
  return "";
}

template <typename... Arguments>
void record(int threads, int cluster, const Arguments&... arguments) {
  launched += "threads=" + std::to_string(threads) + " blocks=" + std::to_string(cluster);
  ((launched += said(arguments)), ...);
  launched += std::string(" ") + std::exchange(kernel, "") + "\n";
}

// Rows, or columns, of n elements. No kernel reads at the addresses: whether 16 bytes divide them
// is all that is asked.
template <typename Op>
void launch(bool columns, int64_t rows, int64_t n, bool aligned) {
  using T = typename Op::T;
  rows::ColumnArgsOf<Op> a{};
  const int64_t inner = aligned ? rows : rows + 1, stride = columns ? n * inner : n;
  for (int k = 0; k < Op::INPUTS; ++k) {
    a.in[k] = reinterpret_cast<const T*>(4096 + (aligned ? 0 : sizeof(T)));
    a.stride[k] = stride, a.step[k] = inner;
  }
  a.rows = rows, a.n = n, a.inner = inner;
  const auto memory = [](int64_t) { return reinterpret_cast<void*>(4096); };
  if (columns) {
    if constexpr (Op::OPERANDS == 0) rows::launch_columns(a, Op{}, nullptr, memory);
  } else {
    rows::launch(static_cast<const rows::ArgsOf<Op>&>(a), Op{}, nullptr, memory);
  }
}

using Launch = void (*)(bool, int64_t, int64_t, bool);
template <typename T>
const std::map<std::string, Launch> kOperators = {
    {"softmax", launch<softmax::Softmax<T>>},
    {"log_softmax", launch<softmax::LogSoftmax<T>>},
    {"double_softmax", launch<softmax::DoubleSoftmax<T>>},
    {"softmax_backward", launch<softmax::SoftmaxBwd<T>>},
    {"layer_norm", launch<layer_norm::Forward<T, T, false>>},
    {"rms_norm", launch<rms::Forward<T, T, false>>},
    {"add_rms_norm", launch<rms::Forward<T, T, true>>},
    {"norm_chain", launch<norm_chain::Forward<T>>},
    {"masked_softmax", launch<masked_softmax::Forward<T>>},
    {"sum + amax", launch<horizontal_reduction_reduction::Forward<T, false>>},
    {"sum + cos", launch<horizontal_reduction_pointwise::Forward<T>>},
};

}  // namespace regimes

// The kernels of one call, a line each.
extern "C" const char* kernels_of(const char* op, int64_t bytes, int64_t columns, int64_t rows,
                                  int64_t n, int64_t aligned) {
  using namespace regimes;
  const auto& operators = bytes == 2   ? kOperators<__nv_bfloat16>
                          : bytes == 4 ? kOperators<float>
                                       : kOperators<double>;
  launched.clear();
  operators.at(op)(columns, rows, n, aligned);
  return launched.c_str();
}
