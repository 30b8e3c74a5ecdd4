// Rows that several blocks of a persistent grid hold together, and how these exchange their sums
// (sm_90 and later). All blocks are resident at once, or they would wait for each other forever.
#pragma once

#include "fuseline/cuda/async.cuh"
#include "fuseline/cuda/norm/rms_cuda_math.cuh"

namespace fuseline::rms {

constexpr int kPartsAtOnce = 5;                  // that a lane loads
constexpr int kMaxGroup = kPartsAtOnce * kWarp;  // blocks that share rows
constexpr int kMaxSlots = 32;

// The blocks form groups; each group owns rows group, group + groups, ..., and each of its blocks
// the same `slice` columns of all of them, the last blocks fewer or none.
struct GridPlan {
  int size;  // blocks of a group
  int groups;
  int slice;
  int slots;       // rows whose slices shared memory holds
  int lag;         // turns from a row's sum to its use, in which the other blocks' sums come
  uint64_t* sums;  // (rows, size), all kAbsent
};

// How a block works on its slice: ITEMS accesses of 16 bytes a thread, and one warp more, which
// loads rows and exchanges sums. A thread adds up a column's terms of dweight by themselves or,
// with TWO_SUMS, a few rows' first and those sums again.
template <int VEC_, int ITEMS_, int THREADS_, bool TWO_SUMS_ = false>
struct GridShape {
  static constexpr bool TWO_SUMS = TWO_SUMS_;
  static constexpr int VEC = VEC_, ITEMS = ITEMS_, THREADS = THREADS_;
  static constexpr int BLOCK = THREADS + kWarp, WARPS = THREADS / kWarp;
  static constexpr int STEP = THREADS * VEC;  // columns between two items
};

// Bits of a NaN that is never published, so that a sum says itself whether it is there.
constexpr uint64_t kAbsent = ~uint64_t{0};
constexpr uint64_t kNan = uint64_t{0x7ff8} << 48;

__device__ __forceinline__ void publish(uint64_t* to, double sum) {
  const uint64_t bits = sum == sum ? __double_as_longlong(sum) : kNan;
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(bits) : "memory");
}

// What the blocks of a group published of one row.
struct Parts {
  const uint64_t* from;
  int size;
  uint64_t bits[kPartsAtOnce];

  __device__ void poll() {
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const int part = i * kWarp + threadIdx.x % kWarp;
      bits[i] = 0;
      if (part >= size) continue;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits[i]) : "l"(from + part));
    }
  }
  __device__ bool absent() const {
    bool absent = false;
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) absent |= bits[i] == kAbsent;
    return __any_sync(kFullMask, absent);
  }
  // Waits for all of them; every lane gets their sum, in an order that depends on `size` alone.
  __device__ double sum() {
    while (absent()) poll();
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kPartsAtOnce; ++i) sum += __longlong_as_double(bits[i]);
    return lanes_sum(sum, kWarp);
  }
};

// The calling block's part of the work.
struct GridBlock {
  int group, rank;  // of the group; this block among its blocks
  int begin, cols;  // of the slice
  int rows;         // of the group

  __device__ GridBlock(const GridPlan& plan, int64_t all_rows, int64_t n)
      : group(blockIdx.x / plan.size), rank(blockIdx.x % plan.size), begin(rank * plan.slice) {
    cols = max(0, min(plan.slice, static_cast<int>(n) - begin));
    rows = (static_cast<int>(all_rows) - group + plan.groups - 1) / plan.groups;
  }
  __device__ int64_t row(const GridPlan& plan, int nth) const {
    return group + static_cast<int64_t>(nth) * plan.groups;
  }
};

// A slot of the ring buffer and the parity of its current round.
struct RingSlot {
  int index = 0;
  unsigned parity = 0;
  __device__ void next(int slots) {
    if (++index < slots) return;
    index = 0, parity ^= 1;
  }
};

// A turn of the warp that exchanges sums: publishes that of the row before, which the other warps
// left in `warps`, and returns that of row turn - lag, where there is one. No block waits for a row
// before it has published it, so the one that is behind never waits forever.
template <int WARPS>
__device__ __forceinline__ double exchange(const GridPlan& plan, const GridBlock& block, int turn,
                                           const double (&warps)[WARPS]) {
  const int lane = threadIdx.x % kWarp, due = turn - plan.lag;
  const auto sums_of = [&](int nth) { return plan.sums + block.row(plan, nth) * plan.size; };
  Parts parts{sums_of(due), plan.size};
  if (due >= 0) parts.poll();  // its way is long
  if (turn > 0 && turn <= block.rows) {
    const double sum = lanes_sum(lane < WARPS ? warps[lane] : 0.0, kWarp);
    if (lane == 0) publish(sums_of(turn - 1) + block.rank, sum);
  }
  return due >= 0 ? parts.sum() : 0.0;
}

// Starts to load the first rows, by the warp that exchanges sums.
template <typename LoadAsync>
__device__ __forceinline__ void fill(const GridPlan& plan, const LoadAsync& load_async) {
#pragma unroll 1
  for (int turn = 0; turn < plan.slots; ++turn) load_async(turn);
}

// Starts to load a row into the slot of the one that all warps wrote in the turn before the last.
// Called before any other load: the copy's fence would wait for it.
template <typename LoadAsync>
__device__ __forceinline__ void refill(const GridPlan& plan, int turn,
                                       const LoadAsync& load_async) {
  const int left = turn - plan.lag - 2;
  if (left >= 0) load_async(left + plan.slots);
}

}  // namespace fuseline::rms
