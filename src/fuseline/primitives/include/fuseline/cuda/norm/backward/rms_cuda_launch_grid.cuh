// Launches the kernels whose blocks share rows: all of these are resident at once, where the GPU
// promises that.
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/norm/backward/rms_cuda_grid.cuh"

namespace fuseline::rms {
namespace {

template <typename T>
using LargeSlices = std::conditional_t<sizeof(T) == 8, GridShape<kVec<T>, 2, 992>,
                                       GridShape<kVec<T>, 4, 512, sizeof(T) == 4>>;
// As large as shared memory lets slices of x and dy be, so that registers hold two sums.
template <typename T>
using FullSlices = GridShape<kVec<T>, 3, 480, true>;

// Whether each multiprocessor of the current GPU holds a block, and all of them start together; not
// where this was compiled for one before sm_90.
template <typename Shape, typename Kernel>
bool holds_grid(Kernel* kernel) {
  int device = 0, together = 0, per_sm = 0;
  cudaFuncAttributes compiled;
  cudaGetDevice(&device);
  const bool asked =
      cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device) == cudaSuccess &&
      cudaFuncGetAttributes(&compiled, kernel) == cudaSuccess && compiled.ptxVersion >= 90 &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared()) ==
          cudaSuccess &&
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, Shape::BLOCK, most_shared()) ==
          cudaSuccess;
  if (!asked) cudaGetLastError();  // or the launch that follows were blamed
  return asked && together && per_sm > 0;
}

// The same, computed once for each device.
template <auto kernel, typename Shape>
bool known_to_hold() {
  static PerDeviceCache cache;
  return cache.of([] { return holds_grid<Shape>(kernel); });
}

// Blocks of a group, of `blocks` in all: enough for a row's packs, and of all such numbers up to
// twice the least the one that leaves the fewest blocks without a group; 0 where they are too few.
// Nothing depends on the number of rows, so a row's sum does not.
int group_size(int64_t packs, int blocks, int block_packs) {
  if (block_packs == 0) return 0;  // no GPU
  const int64_t least = ceil_div(packs, block_packs);
  const int most = std::min(blocks, kMaxGroup);
  if (least > most) return 0;
  int groups = blocks / static_cast<int>(least);
  for (int fewer = groups - 1; fewer > groups / 2 && blocks / fewer <= most; --fewer) {
    if (fewer * (blocks / fewer) > groups * (blocks / groups)) groups = fewer;
  }
  return std::min(most, blocks / groups);
}

// How rows are shared, `buffers` tensors being read; size is 0 where they cannot be.
template <typename T, typename Shape>
GridPlan grid_plan(int64_t rows, int64_t n, int sms, int buffers) {
  // Packs that memory moves at once; rows in shared memory: at work, lagging, ahead of need.
  constexpr int kLine = 8, kAhead = 3, kMinSlots = kAhead + 2, kMostLag = 4;
  const int64_t packs = n / Shape::VEC;
  const int shared = most_shared();
  const int fit = shared / (kMinSlots * buffers * 16) / kLine * kLine;
  GridPlan plan{};
  plan.size = group_size(packs, sms, std::min(Shape::ITEMS * Shape::THREADS, fit));
  if (plan.size == 0) return plan;
  plan.groups = static_cast<int>(std::min<int64_t>(rows, sms / plan.size));
  plan.slice = static_cast<int>(ceil_div(ceil_div(packs, plan.size), kLine)) * kLine * Shape::VEC;
  plan.slots = std::min(kMaxSlots, shared / (buffers * plan.slice * static_cast<int>(sizeof(T))));
  plan.lag = std::min(kMostLag, plan.slots - kAhead);
  return plan;
}

// Marks all sums absent and launches; `a` are the kernel's arguments before the plan.
template <typename T, typename Shape, typename Args>
void launch_grid(void (*kernel)(Args, GridPlan), const Args& a, GridPlan plan, int buffers,
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
  config.dynamicSmemBytes = static_cast<size_t>(plan.slots * buffers * plan.slice) * sizeof(T);
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, a, plan);
}

}  // namespace
}  // namespace fuseline::rms
