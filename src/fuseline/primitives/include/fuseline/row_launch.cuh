// Chooses kernel and block for operators of row_cuda.cuh by row length and alignment only, so that
// a row's result does not depend on the batch: that decides no more than when something is loaded.
#pragma once

#include "fuseline/row_launch_long.cuh"
#include "fuseline/row_short.cuh"
#include "fuseline/row_stream.cuh"

namespace fuseline::rows {
namespace {

// How rows are held, by what docs/decisions/logs/0005-fusion-measurements.md measured. Where
// instructions rather than memory are the limit a thread holds many elements: what it does once a
// row weighs less.
template <typename Op>
struct Plan {
  static constexpr bool HALF = sizeof(typename Op::T) == 2, TWO = Op::INPUTS > 1;
  static constexpr bool HEAVY = Op::ROUNDS > 1;
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

template <typename Op, int VEC, int ELEMENTS, int ROW_THREADS, int THREADS>
using Holding = Shape<VEC, ELEMENTS / VEC, ROW_THREADS, THREADS,
                      std::max(1, Plan<Op>::threads_per_sm(ELEMENTS) / THREADS)>;
// Clusters wait for each other, so a multiprocessor needs one block more, if registers allow.
template <typename Op>
constexpr bool kOneMore =
    Plan<Op>::HALF ? !Op::HAS_FALLBACK && !Op::INTENSE
                   : Plan<Op>::TWO && Plan<Op>::HEAVY && sizeof(typename Op::S) == 4;
template <typename Op, int VEC, int ELEMENTS>
using Clustered =
    Shape<VEC, ELEMENTS / VEC, 0, 256,
          std::max(1, Plan<Op>::threads_per_sm(ELEMENTS) / 256) + (ELEMENTS == 32 && kOneMore<Op>)>;

// Shapes that do the same for rows that are not WHOLE, with the registers that this takes. One
// Short serves any number of threads a row, or a block, which the launch says.
template <typename Op, typename Held>
struct SkewedShape {
  static constexpr int THREADS = Held::ROW_IS_BLOCK ? 512 : kSmallBlock;
  static constexpr int EASE = std::is_base_of_v<NoEpilogueOperands, Op> ? 4 : 3;
  static constexpr int BLOCKS =
      Plan<Op>::threads_per_sm(Held::ITEMS * Held::VEC) * EASE / 4 / THREADS;
  using Short = Shape<Held::VEC, Held::ITEMS, Held::ROW_IS_BLOCK ? 0 : kWarp, THREADS,
                      std::max(1, BLOCKS), false, false>;
  using Clustered = Shape<Held::VEC, Held::ITEMS, 0, Held::MAX_THREADS,
                          std::max(1, std::min(3, Held::MIN_BLOCKS - 1)), false, false>;
};

template <typename Shape, typename Op>
void launch_whole(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  const auto kernel = row_kernel<Op, Shape>;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  constexpr int ROWS = Shape::ROW_IS_BLOCK ? 1 : Shape::MAX_THREADS / Shape::ROW_THREADS;
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, ROWS));
  kernel<<<blocks, Shape::MAX_THREADS, 0, stream>>>(a, op);
}

template <bool WHOLE, int THREADS, typename Op>
void launch_again(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  using Again = typename Op::Again;
  const auto kernel = row_again_kernel<Again, kVec<typename Op::T>, WHOLE, THREADS>;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxL1, done);
  kernel<<<static_cast<unsigned>(a.rows), THREADS, 0, stream>>>(a, op.again());
}

// `width` threads a row, of blocks of `threads`. GPUs before sm_80 have too little shared memory
// for some rows of fp64.
template <typename Shape, typename Op>
void launch_short(const ArgsOf<Op>& a, const Op& op, int width, int threads, cudaStream_t stream) {
  using T = typename Op::T;
  const auto kernel = row_short_kernel<Op, Shape>;
  static PerDeviceCache sized, shared;
  prepare(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared(), sized);
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared,
          shared);
  const int row_pitch = smem_bytes_for<T>(a.n), rows = threads / width;
  const int pitch = rows * row_pitch;
  if (Op::INPUTS * pitch > most_shared()) return launch_again<false, 512>(a, op, stream);
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, rows));
  kernel<<<blocks, threads, Op::INPUTS * pitch, stream>>>(a, op, log2_at_least(width), pitch,
                                                          row_pitch);
}

template <bool WHOLE, typename Shape, typename Op>
void launch_held(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  if constexpr (WHOLE) {
    launch_whole<Shape>(a, op, stream);
  } else {
    constexpr int THREADS = Shape::MAX_THREADS;
    constexpr int WIDTH = Shape::ROW_IS_BLOCK ? THREADS : Shape::ROW_THREADS;
    launch_short<typename SkewedShape<Op, Shape>::Short>(a, op, WIDTH, THREADS, stream);
  }
}

// False where no cluster of such blocks holds a row, or the GPU has none.
template <bool WHOLE, typename Shape, typename Op>
bool launch_cluster(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  const auto kernel = row_cluster_kernel<
      Op, std::conditional_t<WHOLE, Shape, typename SkewedShape<Op, Shape>::Clustered>>;
  const auto l = cluster_for<Shape::VEC, Shape::ITEMS, Shape::MAX_THREADS>(a.n);
  static PerDeviceCache cache[kMaxCluster + 1];
  if (!l.size || !cache[l.size].of([&] { return clusters_held(kernel, l); })) return false;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  with_config(l, a.rows, stream, [&](const cudaLaunchConfig_t& config) {
    return cudaLaunchKernelEx(&config, kernel, a, op, l.slice);
  });
  return true;
}

// The same by persistent clusters, as many as are resident at once, with 32 KB in flight to each
// block. False where each would have one row.
template <typename Shape, typename Op>
bool launch_stream(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  constexpr int STAGE_BYTES = Shape::VEC * Shape::ITEMS * Shape::MAX_THREADS * Op::INPUTS *
                              static_cast<int>(sizeof(typename Op::T));
  constexpr int STAGES = (32 << 10) / STAGE_BYTES;
  const auto kernel = row_stream_kernel<Op, Shape, STAGES>;
  auto l = cluster_for<Shape::VEC, Shape::ITEMS, Shape::MAX_THREADS>(a.n);
  l.shared = STAGES * STAGE_BYTES;
  static PerDeviceCache done;  // first, since the answer depends on it
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared,
          done);
  static PerDeviceCache cache[kMaxCluster + 1];
  const int64_t held = l.size ? cache[l.size].of([&] { return clusters_held(kernel, l); }) : 0;
  if (held == 0 || a.rows <= held) return false;  // no row to load while the first are computed
  with_config(l, held, stream, [&](const cudaLaunchConfig_t& config) {
    return cudaLaunchKernelEx(&config, kernel, a, op, l.slice);
  });
  return true;
}

template <bool WHOLE, int ROW_THREADS, typename Op>
void launch_few(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  constexpr int VEC = kVec<typename Op::T>;
  launch_held<WHOLE, Holding<Op, VEC, Plan<Op>::FEW, ROW_THREADS, kSmallBlock>>(a, op, s);
}

// Odd rows by a warp at most, with 16 elements a thread or 32: those of a block would wait for each
// other more often than they compute.
template <typename Op>
void launch_odd(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  constexpr int VEC = kVec<typename Op::T>;
  if (a.n > kWarp * 16) {
    return launch_held<false, Holding<Op, VEC, 32, kWarp, kSmallBlock>>(a, op, s);
  }
  using Held = Holding<Op, VEC, 16, kWarp, kSmallBlock>;
  const int width = 1 << log2_at_least(ceil_div(a.n, 16));
  launch_short<typename SkewedShape<Op, Held>::Short>(a, op, width, kSmallBlock, s);
}

template <bool WHOLE, typename Op>
void launch_rows(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  using P = Plan<Op>;
  constexpr int VEC = kVec<typename Op::T>, HELD = P::HELD;
  if constexpr (!WHOLE && !P::HALF && !P::TWO) {
    if (a.n % VEC && a.n <= kWarp * 32) return launch_odd(a, op, s);
  }
  if (a.n <= 4 * P::FEW) return launch_few<WHOLE, 4>(a, op, s);
  if (a.n <= 8 * P::FEW) return launch_few<WHOLE, 8>(a, op, s);
  if (a.n <= 16 * P::FEW) return launch_few<WHOLE, 16>(a, op, s);
  if (a.n <= kWarp * P::FEW) return launch_few<WHOLE, kWarp>(a, op, s);
  if constexpr (P::WARP > P::FEW) {
    if (a.n <= kWarp * P::WARP) {
      return launch_held<WHOLE, Holding<Op, VEC, P::WARP, kWarp, kSmallBlock>>(a, op, s);
    }
  }
  constexpr bool FLOAT = sizeof(typename Op::T) == 4, SINGLE = FLOAT && !P::TWO;
  if constexpr (FLOAT && !P::HEAVY) {
    if (a.n <= 128 * 8)
      return launch_held<WHOLE, Shape<VEC, 8 / VEC, 0, 128, P::TWO ? 8 : 12>>(a, op, s);
  }
  if constexpr (!P::TWO) {  // absent elements take as long where each is worked on
    if (a.n <= 64 * HELD) return launch_held<WHOLE, Holding<Op, VEC, HELD, 0, 64>>(a, op, s);
  }
  if (a.n <= 128 * HELD) return launch_held<WHOLE, Holding<Op, VEC, HELD, 0, 128>>(a, op, s);
  if (a.n <= 256 * HELD) return launch_held<WHOLE, Holding<Op, VEC, HELD, 0, 256>>(a, op, s);
  if constexpr (P::HEAVY && !P::HALF && !P::TWO) {
    if (a.n <= 256 * 32) return launch_held<WHOLE, Holding<Op, VEC, 32, 0, 256>>(a, op, s);
  }
  if constexpr (P::THREADS > 256) {
    using Block = std::conditional_t<SINGLE && Op::INTENSE, Shape<VEC, HELD / VEC, 0, 512, 3>,
                                     Holding<Op, VEC, HELD, 0, 512>>;
    if (a.n <= 512 * HELD) return launch_held<WHOLE, Block>(a, op, s);
  }
  if constexpr (!WHOLE) {
    if (a.n % VEC && launch_long<WHOLE, 512>(a, op, s)) return;
  }
  if constexpr (SINGLE && P::HEAVY) {
    if (launch_cluster<WHOLE, Shape<VEC, 32 / VEC, 0, 128, 8>>(a, op, s)) return;
  }
  if constexpr (WHOLE && P::HALF && !P::TWO && Op::INTENSE) {
    const bool much = a.rows * a.n > 8 << 20;
    if (much && a.n <= 8 * 256 * 32 && launch_stream<Shape<VEC, 32 / VEC, 0, 256, 3>>(a, op, s))
      return;
  }
  if constexpr (P::SHARED < 32) {
    if (a.n <= 8 * 256 * P::SHARED &&
        launch_cluster<WHOLE, Clustered<Op, VEC, P::SHARED>>(a, op, s))
      return;
  }
  if (a.n <= 8 * 256 * 32 && launch_cluster<WHOLE, Clustered<Op, VEC, 32>>(a, op, s)) return;
  if (!launch_long<WHOLE, 512>(a, op, s)) launch_again<WHOLE, 512>(a, op, s);
}

// The same of operators whose outputs need more than the row: that costs registers early, and time
// late. Where there is little to do, or one thread does not hold many elements, the time counts.
template <typename Op>
struct OperandPlan {
  static constexpr int BYTES = sizeof(typename Op::T), MOST = BYTES == 2 ? 32 : 16;
  static constexpr int64_t MB = 1 << 20;
  const int64_t n, bytes;  // of a row, of x

  explicit OperandPlan(const ArgsOf<Op>& a) : n(a.n), bytes(a.rows * a.n * BYTES) {}
  bool little() const { return bytes <= 4 * MB; }
  // Late is slower by itself but has more threads at once, so that 8 MB of fp32 are one wave.
  bool early(int elements) const {
    if (BYTES == 8) return false;
    if (BYTES == 2) return little();
    return elements == 32 || little() || (elements == 16 && n <= 2048 && bytes > 8 * MB);
  }
  // Threads that a multiprocessor should hold.
  static constexpr int threads_per_sm(int elements, int threads, bool early) {
    if (BYTES == 8) return 512;
    if (BYTES == 2) return early ? 512 : threads == 512 ? 1024 : 640;
    if (elements == 32) return 512;
    return elements == 8 ? (early ? 1024 : 1536) : (early ? 768 : 1024);
  }
};

template <typename Op, int ELEMENTS, int ROW_THREADS, int THREADS, bool EARLY>
using WithOperands =
    Shape<kVec<typename Op::T>, ELEMENTS / kVec<typename Op::T>, ROW_THREADS, THREADS,
          std::max(1, OperandPlan<Op>::threads_per_sm(ELEMENTS, THREADS, EARLY) / THREADS), EARLY>;

template <bool WHOLE, int ELEMENTS, int ROW_THREADS, int THREADS, typename Op>
void launch_with_operands(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  if constexpr (WHOLE && sizeof(typename Op::T) < 8) {
    if (OperandPlan<Op>(a).early(ELEMENTS)) {
      return launch_held<true, WithOperands<Op, ELEMENTS, ROW_THREADS, THREADS, true>>(a, op, s);
    }
  }
  launch_held<WHOLE, WithOperands<Op, ELEMENTS, ROW_THREADS, THREADS, false>>(a, op, s);
}

// By persistent clusters unless the tensor is small: they keep the operands in registers.
template <bool WHOLE, typename Op>
bool launch_cluster_with_operands(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  constexpr int BYTES = OperandPlan<Op>::BYTES, VEC = kVec<typename Op::T>, ITEMS = 32 / VEC;
  if (a.n > 8 * 256 * 32) return false;
  if constexpr (WHOLE && BYTES < 8) {
    using Early = Shape<VEC, ITEMS, 0, 256, 2, true>;
    if (!OperandPlan<Op>(a).little() && launch_stream<Early>(a, op, s)) return true;
    return launch_cluster<true, Early>(a, op, s);
  } else {
    return launch_cluster<WHOLE, Shape<VEC, ITEMS, 0, 256, 2>>(a, op, s);
  }
}

template <bool WHOLE, typename Op>
void launch_rows_with_operands(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  constexpr int BYTES = OperandPlan<Op>::BYTES, MOST = OperandPlan<Op>::MOST;
  if (a.n <= 4 * MOST) return launch_with_operands<WHOLE, MOST, 4, kSmallBlock>(a, op, s);
  if (a.n <= 8 * MOST) return launch_with_operands<WHOLE, MOST, 8, kSmallBlock>(a, op, s);
  if (a.n <= 16 * MOST) return launch_with_operands<WHOLE, MOST, 16, kSmallBlock>(a, op, s);
  if constexpr (BYTES == 4) {
    if (a.n <= 64 * 8) return launch_with_operands<WHOLE, 8, 0, 64>(a, op, s);
    if (a.n <= 128 * 8) return launch_with_operands<WHOLE, 8, 0, 128>(a, op, s);
  } else {
    if (a.n <= kWarp * MOST) return launch_with_operands<WHOLE, MOST, kWarp, kSmallBlock>(a, op, s);
    if (a.n <= 64 * MOST) return launch_with_operands<WHOLE, MOST, 0, 64>(a, op, s);
  }
  if (a.n <= 128 * MOST) return launch_with_operands<WHOLE, MOST, 0, 128>(a, op, s);
  if (a.n <= 256 * MOST) return launch_with_operands<WHOLE, MOST, 0, 256>(a, op, s);
  if constexpr (BYTES == 4) {
    if (a.n <= 256 * 32) return launch_with_operands<WHOLE, 32, 0, 256>(a, op, s);
  } else {
    if (a.n <= 512 * MOST) return launch_with_operands<WHOLE, MOST, 0, 512>(a, op, s);
  }
  if constexpr (!WHOLE) {
    if (a.n % kVec<typename Op::T> && launch_long<WHOLE, 512>(a, op, s)) return;
  }
  if (launch_cluster_with_operands<WHOLE>(a, op, s) || launch_long<WHOLE, 512>(a, op, s)) return;
  launch_again<WHOLE, 512>(a, op, s);
}

// Rows of few elements that no 16 bytes divide: a thread each.
constexpr int kTiny = 16;

template <int MOST, typename Op>
void launch_tiny(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  constexpr int VEC = kVec<typename Op::T>;
  using Held = Holding<Op, VEC, MOST, 1, kSmallBlock>;
  launch_short<typename SkewedShape<Op, Held>::Short>(a, op, 1, kSmallBlock, stream);
}

template <bool WHOLE, typename Op, typename Allocate>
void launch_of_length(const ArgsOf<Op>& a, const Op& op, cudaStream_t s, Allocate& allocate) {
  if (launch_pieces<WHOLE>(a, op, s, allocate)) return;
  if constexpr (std::is_base_of_v<NoEpilogueOperands, Op>) {
    launch_rows<WHOLE>(a, op, s);
  } else {
    launch_rows_with_operands<WHOLE>(a, op, s);
  }
}

struct NoMemory {
  void* operator()(int64_t) { return nullptr; }
};

// `allocate(bytes)` is asked for memory, for as long as what is launched takes, or gives none.
template <typename Op, typename Allocate = NoMemory>
cudaError_t launch(const ArgsOf<Op>& a, const Op& op, cudaStream_t s, Allocate allocate = {}) {
  using T = typename Op::T;
  bool wide = op.aligned() && a.n % kVec<T> == 0;
  if constexpr (Op::OUTPUTS > 0) {
    for (T* const out : a.out.of) wide = wide && aligned<T>(out, a.n);
  }
  for (int k = 0; k < Op::INPUTS; ++k) wide = wide && aligned<T>(a.in[k], a.stride[k]);
  if (a.n <= kTiny && a.n % kVec<T> != 0) {
    a.n <= kTiny / 2 ? launch_tiny<kTiny / 2>(a, op, s) : launch_tiny<kTiny>(a, op, s);
  } else {
    wide ? launch_of_length<true>(a, op, s, allocate) : launch_of_length<false>(a, op, s, allocate);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline::rows
