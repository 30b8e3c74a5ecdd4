// How long rows are shared by blocks, and the launches of row_long.cuh and row_grid.cuh. Pieces, on
// which the order of sums depends, are chosen by a row's length and the GPU alone; who has them by
// the number of rows.
#pragma once

#include "fuseline/cuda/launch_cluster.cuh"
#include "fuseline/cuda/rows/row_grid.cuh"

namespace fuseline::rows {
namespace {

// Elements of an access to rows: 16 bytes, but one of fp64, of which a lane's 8 bytes keep memory
// busy: so rows of fp64 are WHOLE wherever they begin and end.
template <typename T>
constexpr int kRowVec = sizeof(T) == 8 ? 1 : kVec<T>;

constexpr int kClusterHeld = 8 * 256 * 32;    // elements that the registers of a cluster hold
constexpr int64_t kManyPieces = 1 << 20;      // bytes of a row that a cluster's 16 are too few for
constexpr int64_t kPieceBytes = 16 << 10;     // two accesses of each thread of a block
constexpr int kMostParts = kMaxCluster * 16;  // that a row's pieces have

// Shared memory for rows of each of two blocks on a multiprocessor, which have 8 KB besides.
inline int shared_of_two() { return std::min(208 << 10, most_shared() - (16 << 10)) / 2; }

// The pieces of a row of n: as many as there are blocks of which a multiprocessor has two, if they
// are not too small; or one, where that is no such row.
template <typename Op>
LongPlan long_plan(int64_t n, int sms) {
  using T = typename Op::T;
  const int64_t bytes = n * Op::INPUTS * static_cast<int64_t>(sizeof(T));
  const int most = std::min(2 * sms, kMostParts) / kMaxCluster;
  if (n <= kClusterHeld || bytes < kManyPieces || most == 0) return {1};
  const int64_t wanted = ceil_div(bytes, kPieceBytes * kMaxCluster);
  const int pieces = static_cast<int>(std::min<int64_t>(wanted, most)) * kMaxCluster;
  return {pieces, 1, static_cast<int>(ceil_div(ceil_div(n, kRowVec<T>), pieces) * kRowVec<T>)};
}

// Groups of as many blocks as let all rows be worked on at once, or else of as few as hold a row,
// in `shared` bytes each; a row that is longer than all of these has all blocks.
template <typename Op>
GridPlan grid_plan(LongPlan row, int64_t rows, int blocks, int shared) {
  using T = typename Op::T;
  const int64_t bytes = static_cast<int64_t>(row.piece) * sizeof(T);
  const int64_t fit = std::min<int64_t>(kMostPieces, (shared / Op::INPUTS - 32) / bytes);
  const auto size = [&] { return static_cast<int>(ceil_div(row.pieces, row.each)); };
  while (row.each < fit && rows * size() > blocks) ++row.each;
  row.pitch = Op::ROUNDS > 0 && fit > 0 ? smem_bytes_for<T>(row.each * row.piece) : 0;
  return {row, size(), static_cast<int>(std::min<int64_t>(rows, blocks / size()))};
}

// Blocks of the grid, two a multiprocessor; 0 where they cannot all be resident at once.
template <typename Kernel>
int blocks_together(Kernel* kernel, int threads, int shared) {
  int device = 0, together = 0, per_sm = 0;
  cudaGetDevice(&device);
  const bool asked =
      cudaDeviceGetAttribute(&together, cudaDevAttrCooperativeLaunch, device) == cudaSuccess &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared) ==
          cudaSuccess &&
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, threads, shared) ==
          cudaSuccess;
  if (!asked) cudaGetLastError();  // or the launch that follows were blamed
  return asked && together && per_sm >= 2 ? 2 * multiprocessors() : 0;
}

template <bool HELD, bool WHOLE, int THREADS, typename Op>
bool launch_grid(const ArgsOf<Op>& a, const Op& op, const GridPlan& plan, cudaStream_t stream) {
  const auto kernel = row_grid_kernel<Op, kRowVec<typename Op::T>, WHOLE, THREADS, HELD>;
  static PerDeviceCache blocks;
  const int shared = HELD ? shared_of_two() : 0;
  if (!blocks.of([&] { return blocks_together(kernel, THREADS, shared); })) return false;
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(plan.groups * plan.size);
  config.blockDim = THREADS;
  config.dynamicSmemBytes = plan.row.pitch * Op::INPUTS;
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  cudaLaunchKernelEx(&config, kernel, a, op, plan);
  return true;
}

// False where the GPU does not launch such grids. allocate(bytes) is memory for what is launched.
template <bool WHOLE, int THREADS, typename Op, typename Allocate>
bool launch_grid(const ArgsOf<Op>& a, const Op& op, GridPlan plan, cudaStream_t stream,
                 Allocate& allocate) {
  if constexpr (Op::ROUNDS > 0) {
    const int64_t words = int64_t{2} * plan.groups * plan.row.pieces * part_words<Op>();
    plan.board = static_cast<uint64_t*>(allocate(words * sizeof(uint64_t)));
    if (plan.board == nullptr) return false;
    if (plan.row.pitch > 0) return launch_grid<true, WHOLE, THREADS>(a, op, plan, stream);
  }
  constexpr bool ANY = kRowVec<typename Op::T> == 1;  // one kernel for all rows
  return launch_grid<false, ANY, THREADS>(a, op, plan, stream);
}

// By clusters that keep a row in shared memory: of two blocks a multiprocessor, or else of one.
// False where none does.
template <bool WHOLE, int THREADS, typename Op>
bool launch_long(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  using Again = typename Op::Again;
  using T = typename Op::T;
  constexpr int VEC = kRowVec<T>, BYTES = Op::INPUTS * static_cast<int>(sizeof(T));
  const auto kernel = row_long_kernel<Again, VEC, WHOLE, THREADS>;
  LongPlan plan = long_plan<Op>(a.n, multiprocessors());
  const bool several = plan.pieces > 1;
  for (const int most : {104 << 10, 208 << 10}) {
    const int64_t columns = (most - 64 * Op::INPUTS) / BYTES / VEC * VEC;
    int size = 1 << log2_at_least(ceil_div(a.n, columns));
    if (size > kMaxCluster) continue;
    if (several) {
      size = kMaxCluster;
      plan.each = plan.pieces / size;
      if (plan.each > kMostPieces || plan.each * plan.piece > columns) continue;
    } else {
      plan = {size, 1, static_cast<int>(ceil_div(ceil_div(a.n, VEC), size) * VEC)};
    }
    plan.pitch = smem_bytes_for<T>(plan.each * plan.piece);
    ClusterLaunch l{size, 0, THREADS, most};
    static PerDeviceCache cache[2][kMaxCluster + 1];
    auto& held = cache[most > 104 << 10][size];
    if (!held.of([&] { return clusters_held(kernel, l); })) continue;
    l.shared = plan.pitch * Op::INPUTS;
    with_config(l, a.rows, stream, [&](const cudaLaunchConfig_t& config) {
      return cudaLaunchKernelEx(&config, kernel, a, op.again(), plan);
    });
    return true;
  }
  return false;
}

// Rows of many pieces: by clusters where these keep most of the GPU busy, or else by a grid. Both
// add up in the same order if both hold the row. False where there are no such rows, or neither.
template <bool WHOLE, typename Op, typename Allocate>
bool launch_pieces(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream, Allocate& allocate) {
  using Again = typename Op::Again;
  const int sms = multiprocessors();
  const LongPlan row = long_plan<Op>(a.n, sms);
  if (row.pieces == 1) return false;
  const GridPlan plan = grid_plan<Again>(row, a.rows, 2 * sms, shared_of_two());
  const bool holds = Op::ROUNDS == 0 || plan.row.pitch > 0, few = a.rows * kMaxCluster < sms;
  if (!(few && holds) && launch_long<WHOLE, 512>(a, op, stream)) return true;
  return launch_grid<WHOLE, 512>(a, op.again(), plan, stream, allocate);
}

}  // namespace
}  // namespace fuseline::rows
