// The kernel of row_cuda.cuh for long rows that are few, or that no cluster holds: blocks of a
// persistent grid, all resident at once, share them and exchange their parts through memory.
#pragma once

#include <cstring>

#include "fuseline/cuda/grid.cuh"
#include "fuseline/cuda/rows/row_long.cuh"

namespace fuseline::rows {

// Groups of `size` blocks, each of which owns rows group, group + groups, ...
struct GridPlan {
  LongPlan row;
  int size, groups;
  uint64_t* board;  // (groups, 2, pieces, kPartWords): where blocks leave their parts
};

// Words of the board that hold a part of any round.
template <typename Op, int ROUND = 0>
constexpr int part_words() {
  if constexpr (ROUND < Op::ROUNDS) {
    constexpr int WORDS = sizeof(typename Op::template Part<ROUND>) / sizeof(unsigned);
    constexpr int OTHERS = part_words<Op, ROUND + 1>();
    return WORDS > OTHERS ? WORDS : OTHERS;
  }
  return 0;
}

// A part on the board: a word has 4 bytes of it and the number of the exchange, so that it tells
// itself whether it is there, and nobody waits for one write before another.
template <typename Part>
struct BoardPart {
  static constexpr int WORDS = sizeof(Part) / sizeof(unsigned);

  static __device__ __forceinline__ void write(uint64_t* to, const Part& part, unsigned turn) {
    unsigned words[WORDS];
    memcpy(words, &part, sizeof(Part));
#pragma unroll
    for (int i = 0; i < WORDS; ++i) {
      write_shared_word(to + i, static_cast<uint64_t>(turn) << 32 | words[i]);
    }
  }
  static __device__ __forceinline__ Part wait_for(const uint64_t* from, unsigned turn) {
    unsigned words[WORDS];
    for (bool there = false; !there;) {
      there = true;
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        const uint64_t word = read_shared_word(from + i);
        words[i] = static_cast<unsigned>(word);
        there &= word >> 32 == turn;
      }
    }
    Part part;
    memcpy(&part, words, sizeof(Part));
    return part;
  }
};

// A block's side of what its group exchanges, of blocks of THREADS.
template <typename Op, int THREADS>
class GroupParts {
 public:
  // Clears what this block will write: the memory may look as if a part were there already.
  __device__ __forceinline__ GroupParts(const GridPlan& plan, int group, int rank)
      : pieces_(plan.row.pieces),
        first_(rank * plan.row.each),
        count_(min(plan.row.each, pieces_ - first_)),
        board_(plan.board + static_cast<int64_t>(group) * 2 * pieces_ * WORDS) {
    for (int i = threadIdx.x; i < 2 * count_ * WORDS; i += THREADS) {
      place(i % 2, first_)[i / 2] = 0;
    }
    cleared_.arrive();
  }

  // All blocks' parts, put together, in each thread. Two places serve in turn: a block that writes
  // to one again has read all parts of the turn between, which others left after they had read.
  template <int ROUND>
  __device__ __forceinline__ auto whole() {
    using Part = typename Op::template Part<ROUND>;
    constexpr int WARPS = THREADS / kWarp;
    __shared__ Part sixteenths[kMaxCluster];
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, at = lane % kMaxCluster;
    if (turn_++ == 0) cleared_.wait();
#pragma unroll 1
    for (int piece = warp; piece < count_; piece += WARPS) {
      const Part part = piece_part<ROUND, THREADS, Op>(piece);
      if (lane == 0) {
        BoardPart<Part>::write(place(turn_ % 2, first_ + piece), part, turn_);
      }
    }
    const int each = pieces_ / kMaxCluster;
#pragma unroll 1
    for (int nth = warp; nth < kMaxCluster; nth += WARPS) {
      Part part = Part::none();
      if (at < each) {
        part = BoardPart<Part>::wait_for(place(turn_ % 2, nth * each + at), turn_);
      }
      part = over_lanes(part, kMaxCluster);
      if (lane == 0) sixteenths[nth] = part;
    }
    __syncthreads();
    return over_lanes(sixteenths[at], kMaxCluster);
  }

 private:
  static constexpr int WORDS = part_words<Op>();
  __device__ __forceinline__ uint64_t* place(unsigned which, int piece) const {
    return board_ + (which * pieces_ + piece) * WORDS;
  }

  const int pieces_, first_, count_;
  uint64_t* const board_;
  unsigned turn_ = 0;
  GridBarrier cleared_;
};

template <typename Op, int VEC, bool WHOLE, int THREADS, bool HELD>
__global__ void __launch_bounds__(THREADS, 2)
    row_grid_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op,
                    const __grid_constant__ GridPlan plan) {
  const int group = blockIdx.x / plan.size, rank = blockIdx.x % plan.size;
  const auto rows = [&](const auto& whole) {
    for (int64_t index = group; index < a.rows; index += plan.groups) {
      long_row<HELD, VEC, WHOLE, THREADS>(a, op, index, rank, plan.row, whole);
      if constexpr (HELD) __syncthreads();  // before the next row takes this one's place
    }
  };
  GroupParts<Op, THREADS> parts(plan, group, rank);
  rows([&](auto round) { return parts.template whole<decltype(round)::value>(); });
}

}  // namespace fuseline::rows
