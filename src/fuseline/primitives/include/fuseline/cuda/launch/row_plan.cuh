// How rows are held: elements of a thread, threads of a block, blocks of a multiprocessor.
#pragma once

#include "fuseline/cuda/launch/row_launch_long.cuh"

namespace fuseline::rows {
namespace {

// How rows are held, by what docs/decisions/logs/0005-fusion-measurements.md measured. Where
// instructions rather than memory are the limit a thread holds many elements: what it does once a
// row weighs less.
template <typename Op>
struct Plan {
  static constexpr bool HALF = sizeof(typename Op::T) == 2, TWO = Op::INPUTS > 1;
  static constexpr bool HEAVY = Op::ROUNDS > 1, SINGLE = sizeof(typename Op::T) == 4 && !TWO;
  // Elements of each input that a thread holds: of a row that is a warp's or less, a block's, a
  // cluster's.
  static constexpr int FEW = HEAVY ? (HALF && !TWO ? 32 : 16) : (HALF || TWO ? 16 : 8);
  static constexpr int HELD = HALF ? (TWO ? 8 : 32) : 16;
  static constexpr int SHARED = TWO && !HALF ? 16 : 32;
  static constexpr int WARP = HALF && (HEAVY || !TWO) ? 32 : 16;  // the longest of a warp's rows
  static constexpr int THREADS = HALF || !TWO ? 512 : 256;        // of the largest block
  // Threads that a multiprocessor should hold: 64 registers hold 32 of fp32.
  static constexpr int threads_per_sm(int elements) {
    if (sizeof(typename Op::S) == 8) return 512 / Op::INPUTS;
    return std::min(1024, 1024 * 32 / (Op::INPUTS * elements));
  }
};

// A row is a warp's or less, or a block's of at most Plan::THREADS.
template <typename Op, int ELEMENTS, bool IS_BLOCK>
struct Holding {
  static constexpr int VEC = std::min(kVec<typename Op::T>, ELEMENTS);
  static constexpr int THREADS = IS_BLOCK ? Plan<Op>::THREADS : kSmallBlock;
  using Shape = rows::Shape<VEC, ELEMENTS / VEC, IS_BLOCK, THREADS,
                            std::max(1, Plan<Op>::threads_per_sm(ELEMENTS) / THREADS)>;
};
// Clusters wait for each other, so a multiprocessor needs one block more, if registers allow.
template <typename Op>
constexpr bool kOneMore =
    Plan<Op>::HALF ? !Op::HAS_FALLBACK && !Op::INTENSE
                   : Plan<Op>::TWO && Plan<Op>::HEAVY && sizeof(typename Op::S) == 4;
template <typename Op, int ELEMENTS>
using Clustered =
    Shape<kRowVec<typename Op::T>, ELEMENTS / kRowVec<typename Op::T>, true, 256,
          std::max(1, Plan<Op>::threads_per_sm(ELEMENTS) / 256) + (ELEMENTS == 32 && kOneMore<Op>)>;

// Shapes that do the same for rows that are not WHOLE, with the registers that this takes.
template <typename Op, typename Held>
struct SkewedShape {
  static constexpr int THREADS = Held::MAX_THREADS;
  static constexpr int ELEMENTS = Held::ITEMS * Held::VEC;
  // A block's parameters take registers that a warp's rows spare: layer_norm of 1500 bf16 columns
  // takes 53 us with 75 of them, 56 with 64; of 1001 by a warp 17 and 14.
  static constexpr int SHARE = Held::IS_BLOCK ? 5 - Op::OPERANDS : 5;
  static constexpr int FIT = Plan<Op>::threads_per_sm(ELEMENTS) * SHARE / 5 / THREADS;
  // Of so few elements a thread, what waits for memory is the time: more threads.
  static constexpr bool TINY = sizeof(typename Op::S) == 4 && Op::INPUTS * ELEMENTS <= 8;
  static constexpr int BLOCKS = TINY ? 1280 / THREADS : FIT;
  using Short =
      Shape<Held::VEC, Held::ITEMS, Held::IS_BLOCK, THREADS, std::max(1, BLOCKS), false, false>;
  using Clustered = Shape<Held::VEC, Held::ITEMS, true, Held::MAX_THREADS,
                          std::max(1, std::min(3, Held::MIN_BLOCKS - 1)), false, false>;
};

}  // namespace
}  // namespace fuseline::rows
