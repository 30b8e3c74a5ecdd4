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

// Shared memory for a row of each of two blocks on a multiprocessor, and the columns that it holds.
constexpr int kBlockBytes = 104 << 10;
template <typename Op>
int64_t columns_held(int bytes) {
  constexpr int VEC = kRowVec<typename Op::T>;
  return (bytes - 64 * Op::INPUTS) / (Op::INPUTS * sizeof(typename Op::T)) / VEC * VEC;
}

// The pieces of a row of n: for the blocks of a cluster, up to 16; of a long row as many as blocks
// of which a multiprocessor has two, if they are not too small.
template <typename Op>
LongPlan long_plan(int64_t n, int sms) {
  using T = typename Op::T;
  constexpr int VEC = kRowVec<T>, BYTES = Op::INPUTS * static_cast<int>(sizeof(T));
  const int most = std::min(2 * sms, kMostParts) / kMaxCluster;
  const auto in = [&](int pieces) {
    return LongPlan{pieces, 1, static_cast<int>(ceil_div(ceil_div(n, VEC), pieces) * VEC)};
  };
  if (n > kClusterHeld && n * BYTES >= kManyPieces && most > 0) {
    const int64_t wanted = ceil_div(n * BYTES, kPieceBytes * kMaxCluster);
    return in(static_cast<int>(std::min<int64_t>(wanted, most)) * kMaxCluster);
  }
  const int blocks = 1 << log2_at_least(ceil_div(n, columns_held<Op>(kBlockBytes)));
  const bool divide = Op::FEW_KERNELS || n % kVec<T> != 0;  // or few rows have another kernel
  return in(std::min(blocks * (divide ? kPiecesOfBlock<Op> : 1), kMaxCluster));
}

// Groups of as many blocks as let all rows be worked on at once, or else in the fewest turns, with
// `shared` bytes each; a row that is longer than all of these has all blocks.
template <typename Op>
GridPlan grid_plan(LongPlan row, int64_t rows, int blocks, int shared) {
  using T = typename Op::T;
  const int64_t bytes = static_cast<int64_t>(row.piece) * sizeof(T);
  const int64_t fit = std::min<int64_t>(kMostPieces, (shared / Op::INPUTS - 32) / bytes);
  const auto size_of = [&](int64_t each) { return ceil_div(row.pieces, each); };
  const auto turns_of = [&](int64_t each) { return ceil_div(rows, blocks / size_of(each)); };
  const int64_t most = std::max<int64_t>(fit, 1), turns = turns_of(most);
  while (row.each < most && turns_of(row.each) > turns) ++row.each;
  const auto size = static_cast<int>(size_of(row.each));
  row.pitch = fit > 0 ? smem_bytes_for<T>(row.each * row.piece) : 0;
  return {row, size, static_cast<int>(std::min<int64_t>(rows, blocks / size))};
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
  const int64_t words = int64_t{2} * plan.groups * plan.row.pieces * part_words<Op>();
  plan.board = static_cast<uint64_t*>(allocate(words * sizeof(uint64_t)));
  if (plan.board == nullptr) return false;
  if (plan.row.pitch > 0) return launch_grid<true, WHOLE, THREADS>(a, op, plan, stream);
  constexpr bool ANY = kRowVec<typename Op::T> == 1;  // one kernel for all rows
  return launch_grid<false, ANY, THREADS>(a, op, plan, stream);
}

// By clusters that keep a row in shared memory, two blocks a multiprocessor, or else one: of as few
// blocks as hold it, or of more where rows are few. False where none does, or where they need more
// than `most_turns` to have had all rows.
template <bool WHOLE, int THREADS, typename Op>
bool launch_long(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream,
                 int64_t most_turns = INT64_MAX) {
  using Again = typename Op::Again;
  using T = typename Op::T;
  constexpr int VEC = kRowVec<T>;
  const auto kernel = row_long_kernel<Again, VEC, WHOLE, THREADS>;
  const int sms = multiprocessors();
  LongPlan plan = long_plan<Op>(a.n, sms);
  const int blocks = std::min(plan.pieces, kMaxCluster);
  for (const int most : {kBlockBytes, 2 * kBlockBytes}) {
    const auto columns = [&](int size) {  // of a block
      return std::min(a.n, int64_t{plan.pieces / size} * plan.piece);
    };
    const auto fits = [&](int size) {
      return plan.pieces / size <= kMostPieces && columns(size) <= columns_held<Op>(most);
    };
    int size = plan.pieces > kMaxCluster ? kMaxCluster : 1;
    while (size < blocks && (!fits(size) || size * a.rows <= sms)) size *= 2;
    if (!fits(size)) continue;
    ClusterLaunch l{size, 0, THREADS, most};
    static PerDeviceCache cache[2][kMaxCluster + 1];
    const int64_t held =
        cache[most > kBlockBytes][size].of([&] { return clusters_held(kernel, l); });
    if (held == 0) continue;
    if (ceil_div(a.rows, held) > most_turns) return false;
    plan.each = plan.pieces / size;
    plan.pitch = smem_bytes_for<T>(columns(size));
    l.shared = plan.pitch * Op::INPUTS;
    with_config(l, a.rows, stream, [&](const cudaLaunchConfig_t& config) {
      return cudaLaunchKernelEx(&config, kernel, a, op.again(), plan);
    });
    return true;
  }
  return false;
}

// Rows of more pieces than a cluster has blocks: by clusters, or by a grid where these would leave
// much of the GPU idle or take more turns. Both add up in the same order if both hold the row.
// False where there are no such rows, or neither.
template <bool WHOLE, typename Op, typename Allocate>
bool launch_pieces(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream, Allocate& allocate) {
  using Again = typename Op::Again;
  const int sms = multiprocessors();
  const LongPlan row = long_plan<Op>(a.n, sms);
  if (row.pieces <= kMaxCluster) return false;
  const GridPlan plan = grid_plan<Again>(row, a.rows, 2 * sms, shared_of_two());
  const bool holds = plan.row.pitch > 0, few = a.rows * kMaxCluster < sms;
  const int64_t turns = holds ? ceil_div(a.rows, plan.groups) : INT64_MAX;
  if (!(few && holds) && launch_long<WHOLE, 512>(a, op, stream, turns)) return true;
  return launch_grid<WHOLE, 512>(a, op.again(), plan, stream, allocate);
}

}  // namespace
}  // namespace fuseline::rows
