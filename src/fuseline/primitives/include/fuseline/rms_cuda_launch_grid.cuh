// Launches the kernels whose blocks share rows: all of these are resident at once, where the GPU
// promises that.
#pragma once

#include "fuseline/rms_cuda_blocks.cuh"
#include "fuseline/rms_cuda_grid.cuh"

namespace fuseline::rms {
namespace {

// Longer rows are shared, in accesses of 16 bytes; docs/decisions/0004 says what shorter ones do.
constexpr int64_t kSharedFrom = 8 * kMaxBlock;
constexpr int kMaxLag = 4;

template <typename T>
using Grid = GridShape<kVec<T>, 2, 512, 1>;

// Whether each multiprocessor of the current GPU holds a block with all the shared memory that it
// may have, and all of them start together; not where this was compiled for one before sm_90.
template <typename Kernel>
bool holds_grid(Kernel* kernel, int threads) {
  int device = 0, together = 0, per_sm = 0;
  cudaFuncAttributes compiled;
  cudaGetDevice(&device);
  const bool asked =
      cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device) == cudaSuccess &&
      cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess && compiled.ptxVersion >= 90 &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared()) ==
          cudaSuccess &&
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, most_shared()) ==
          cudaSuccess;
  if (!asked) cudaGetLastError();  // or the launch that follows were blamed
  return asked && together && per_sm > 0;
}

// The same, asked once a device.
template <typename Shape, typename Kernel>
bool known_to_hold(Kernel* kernel, std::atomic<int> (&known)[64]) {
  int device = 0;
  cudaGetDevice(&device);
  std::atomic<int>& answer = known[device % 64];  // 0: not asked, 1: no, 2: yes
  if (answer.load(std::memory_order_acquire) == 0) {
    answer.store(holds_grid(kernel, Shape::BLOCK) ? 2 : 1, std::memory_order_release);
  }
  return answer.load(std::memory_order_relaxed) == 2;
}

// Blocks of a group: enough for a row's packs, and of all such numbers up to twice the least the
// one that leaves the fewest multiprocessors without a group; 0 where they are too few. Nothing
// depends on the number of rows, so a row's sum does not.
int group_size(int64_t packs, int sms, int block_packs) {
  const int64_t least = ceil_div(packs, block_packs);
  const int most = std::min(sms, kMaxGroup);
  if (least > most) return 0;
  int groups = sms / static_cast<int>(least);
  for (int fewer = groups - 1; fewer > groups / 2 && sms / fewer <= most; --fewer) {
    if (fewer * (sms / fewer) > groups * (sms / groups)) groups = fewer;
  }
  return std::min(most, sms / groups);
}

// How rows are shared, `rooms` tensors of them being read; size is 0 where they are not.
template <typename T, typename Shape>
GridPlan grid_plan(int64_t rows, int64_t n, int sms, int rooms) {
  constexpr int kLine = 8;  // packs that memory moves at once
  const int64_t packs = n / Shape::VEC;
  GridPlan plan{};
  if (packs <= kSharedFrom) return plan;
  plan.size = group_size(packs, sms, Shape::ITEMS * Shape::THREADS);
  if (plan.size == 0) return plan;
  plan.groups = static_cast<int>(std::min<int64_t>(rows, sms / plan.size));
  plan.slice = static_cast<int>(ceil_div(ceil_div(packs, plan.size), kLine)) * kLine * Shape::VEC;
  const int place = rooms * plan.slice * static_cast<int>(sizeof(T));
  plan.places = std::min(kMaxPlaces, most_shared() / place);
  plan.lag = std::max(1, std::min(kMaxLag, plan.places / 3));
  if (plan.places < plan.lag + 3) plan.size = 0;  // no row would come ahead of need
  return plan;
}

// Marks all sums absent and launches; `a` are the kernel's arguments before the plan.
template <typename T, typename Shape, typename Args>
void launch_grid(void (*kernel)(Args, GridPlan), const Args& a, GridPlan plan, int rooms,
                 void* sums, cudaStream_t stream) {
  plan.sums = static_cast<uint64_t*>(sums);
  const auto bytes = static_cast<size_t>(a.rows * plan.size) * sizeof(uint64_t);
  if (cudaMemsetAsync(sums, 0xff, bytes, stream) != cudaSuccess) return;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(plan.groups * plan.size);
  config.blockDim = Shape::BLOCK;
  config.dynamicSmemBytes = static_cast<size_t>(plan.places * rooms * plan.slice) * sizeof(T);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, a, plan);
}

}  // namespace
}  // namespace fuseline::rms
