// Chooses kernel and block for operators of row_cuda.cuh by row length and alignment only, so that
// a row's result does not depend on the batch: that decides no more than when something is loaded.
#pragma once

#include "fuseline/cuda/launch/row_plan.cuh"
#include "fuseline/cuda/rows/row_short.cuh"
#include "fuseline/cuda/rows/row_stream.cuh"

namespace fuseline::rows {
namespace {

// With 2^log_width threads a row, and what else the kernel is told.
template <auto KERNEL, typename Shape, typename Op, typename... More>
void launch_by(const ArgsOf<Op>& a, const Op& op, int log_width, cudaStream_t stream,
               const More&... more) {
  const auto kernel = KERNEL;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, kSmallShare, done);
  const int threads = Shape::IS_BLOCK ? 1 << log_width : Shape::MAX_THREADS;
  const auto blocks = static_cast<unsigned>(ceil_div(a.rows, threads >> log_width));
  kernel<<<blocks, threads, 0, stream>>>(a, op, log_width, more...);
}
template <typename Shape, typename Op>
void launch_whole(const ArgsOf<Op>& a, const Op& op, int log_width, cudaStream_t stream) {
  launch_by<row_kernel<Op, Shape>, Shape>(a, op, log_width, stream);
}
// The same of rows that are not WHOLE: at addresses that 16 bytes do not divide, or SPREAD.
template <bool SPREAD, typename Shape, typename Op>
void launch_short(const ArgsOf<Op>& a, const Op& op, int log_width, cudaStream_t stream) {
  if (std::any_of(a.gap, a.gap + Op::INPUTS, [](int64_t gap) { return gap != 0; })) {
    using Any = typename Shape::template Wide<kLaunchSays>;
    return launch_by<row_apart_kernel<Op, Any>, Any>(a, op, log_width, stream, SPREAD);
  }
  launch_by<row_short_kernel<Op, Shape, SPREAD>, Shape>(a, op, log_width, stream);
}

template <int THREADS, typename Op>
void launch_again(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  using Again = typename Op::Again;
  const auto kernel = row_again_kernel<Again, kVec<typename Op::T>, THREADS>;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxL1, done);
  kernel<<<static_cast<unsigned>(a.rows), THREADS, 0, stream>>>(a, op.again());
}

// Of a warp's rows: loops over a width that is known are shorter, by a tenth of the time.
template <typename Shape, int LOG_WIDTH, typename Op>
void launch_wide(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  if constexpr (kWarp >> LOG_WIDTH > 1) {
    const bool holds = a.n <= Shape::ITEMS * Shape::VEC << LOG_WIDTH;
    if (!holds) return launch_wide<Shape, LOG_WIDTH + 1>(a, op, stream);
  }
  launch_whole<typename Shape::template Wide<LOG_WIDTH>>(a, op, LOG_WIDTH, stream);
}

// By as few threads a row as hold it, at least 2^LEAST, or as many as have an element.
template <bool WHOLE, typename Shape, int LEAST, typename Op>
void launch_held(const ArgsOf<Op>& a, const Op& op, cudaStream_t stream) {
  const int needed = log2_at_least(ceil_div(a.n, Shape::ITEMS * Shape::VEC));
  const int packs = Shape::IS_BLOCK ? LEAST : log2_at_least(ceil_div(a.n, Shape::VEC));
  const int log_width = std::max(std::min(LEAST, packs), needed);
  if constexpr (!WHOLE) {
    launch_short<false, typename SkewedShape<Op, Shape>::Short>(a, op, log_width, stream);
  } else if constexpr (Shape::IS_BLOCK || Op::FEW_KERNELS) {
    launch_whole<Shape>(a, op, log_width, stream);
  } else if (log_width < LEAST) {
    launch_whole<Shape>(a, op, log_width, stream);
  } else {
    launch_wide<Shape, LEAST>(a, op, stream);
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

// Threads of a row of a block's, at least, and of less than that: as exponents of two.
constexpr int kLeastBlock = 6, kLeastFew = 2;

// A warp's rows at most, with ELEMENTS a thread.
template <bool WHOLE, int ELEMENTS, int LEAST, typename Op>
void launch_few(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  launch_held<WHOLE, typename Holding<Op, ELEMENTS, false>::Shape, LEAST>(a, op, s);
}

// Rows that a block or less of it holds. False if they are longer.
template <bool WHOLE, typename Op>
bool launch_in_block(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  using P = Plan<Op>;
  constexpr int VEC = kRowVec<typename Op::T>, HELD = P::HELD;
  if (a.n <= kWarp * P::FEW) return launch_few<WHOLE, P::FEW, kLeastFew>(a, op, s), true;
  if constexpr (P::WARP > P::FEW) {
    if (a.n <= kWarp * P::WARP) return launch_few<WHOLE, P::WARP, 5>(a, op, s), true;
  }
  if constexpr (P::SINGLE && (P::HEAVY || Op::INTENSE)) {  // more rows at once than by 512 threads
    if (a.n > 256 * HELD && a.n <= 256 * 32) {
      return launch_held<WHOLE, Shape<VEC, 32 / VEC, true, 256, 4>, kLeastBlock>(a, op, s), true;
    }
  }
  if (a.n > P::THREADS * HELD) return false;
  return launch_held<WHOLE, typename Holding<Op, HELD, true>::Shape, kLeastBlock>(a, op, s), true;
}

template <bool WHOLE, typename Op>
void launch_beyond_block(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  using P = Plan<Op>;
  constexpr int VEC = kRowVec<typename Op::T>;
  if constexpr (!WHOLE) {
    if (a.n % VEC && launch_long<WHOLE, 512>(a, op, s)) return;
  }
  if constexpr (WHOLE && P::HALF && !P::TWO && Op::INTENSE) {
    const bool much = a.rows * a.n > 8 << 20;
    if (much && a.n <= 8 * 256 * 32 && launch_stream<Shape<VEC, 32 / VEC, true, 256, 3>>(a, op, s))
      return;
  }
  using Cluster = std::conditional_t<P::SINGLE && P::HEAVY, Shape<VEC, 32 / VEC, true, 128, 8>,
                                     Clustered<Op, P::SHARED>>;
  if constexpr (!Op::FEW_KERNELS) {
    if (a.n <= 8 * 256 * 32 && launch_cluster<WHOLE, Cluster>(a, op, s)) return;
  }
  if (!launch_long<WHOLE, 512>(a, op, s)) launch_again<512>(a, op, s);
}

// The same of operators whose outputs need more than the row: that costs registers early, and time
// late. Where there is little to do, or one thread does not hold many elements, the time counts;
// with one input and one operand always.
template <typename Op>
struct OperandPlan {
  static constexpr int BYTES = sizeof(typename Op::T);
  static constexpr bool TWO = Op::INPUTS > 1;
  static constexpr int MOST = BYTES == 2 && !TWO ? 32 : 16;
  static constexpr int64_t MB = 1 << 20;
  static constexpr bool ONE = Op::OPERANDS == 1;
  static constexpr int THREADS = MOST == 32 ? 256 : 512;  // of the largest block
  static constexpr bool LATE = !ONE;  // whether kernels are there that load operands late
  const int64_t n, bytes;             // of a row, of x

  explicit OperandPlan(const ArgsOf<Op>& a) : n(a.n), bytes(a.rows * a.n * BYTES) {}
  bool little() const { return bytes <= 4 * MB; }
  // Late is slower by itself but has more threads at once, so that 8 MB of fp32 are one wave.
  bool early() const { return little() || (BYTES == 4 && n <= 2048 && bytes > 8 * MB); }
  // Threads that a multiprocessor should hold.
  static constexpr int threads_per_sm(bool is_block, bool early) {
    if (BYTES == 2) return early && !ONE ? 512 : is_block ? 768 : 640;
    return early ? 768 : 1024;
  }
};

template <typename Op, bool IS_BLOCK, bool EARLY>
struct WithOperands {
  using P = OperandPlan<Op>;
  static constexpr int VEC = kVec<typename Op::T>, THREADS = IS_BLOCK ? P::THREADS : kSmallBlock;
  static constexpr int BLOCKS = std::max(1, P::threads_per_sm(IS_BLOCK, EARLY) / THREADS);
  using Shape = rows::Shape<VEC, P::MOST / VEC, IS_BLOCK, THREADS, BLOCKS, EARLY>;
};

template <bool WHOLE, bool IS_BLOCK, typename Op>
void launch_with_operands(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  using P = OperandPlan<Op>;
  constexpr int LEAST = IS_BLOCK ? kLeastBlock : kLeastFew;
  if constexpr (WHOLE) {
    if (!P::LATE || P(a).early()) {
      return launch_held<true, typename WithOperands<Op, IS_BLOCK, true>::Shape, LEAST>(a, op, s);
    }
  }
  if constexpr (!WHOLE || P::LATE) {
    launch_held<WHOLE, typename WithOperands<Op, IS_BLOCK, false>::Shape, LEAST>(a, op, s);
  }
}

// By persistent clusters unless the tensor is small: they keep the operands in registers.
template <bool WHOLE, typename Op>
bool launch_cluster_with_operands(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  constexpr int BYTES = OperandPlan<Op>::BYTES, VEC = kRowVec<typename Op::T>;
  constexpr int ITEMS = (OperandPlan<Op>::TWO ? 16 : 32) / VEC;
  if (a.n > 8 * 256 * 32) return false;
  if constexpr (WHOLE && BYTES < 8) {
    using Early = Shape<VEC, ITEMS, true, 256, 2, true>;
    if (!OperandPlan<Op>(a).little() && launch_stream<Early>(a, op, s)) return true;
    return launch_cluster<true, Early>(a, op, s);
  } else {
    return launch_cluster<WHOLE, Shape<VEC, ITEMS, true, 256, 2>>(a, op, s);
  }
}

template <bool WHOLE, typename Op>
bool launch_in_block_with_operands(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  using P = OperandPlan<Op>;
  if (a.n <= kWarp * P::MOST) return launch_with_operands<WHOLE, false>(a, op, s), true;
  if (a.n <= P::THREADS * P::MOST) return launch_with_operands<WHOLE, true>(a, op, s), true;
  if constexpr (P::MOST == 32) {  // late, so that a multiprocessor holds two blocks
    if (a.n <= 512 * 32)
      return launch_held<WHOLE, Shape<8, 4, true, 512, 2>, kLeastBlock>(a, op, s), true;
  }
  return false;
}

template <bool WHOLE, typename Op>
void launch_beyond_block_with_operands(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  if constexpr (!WHOLE) {
    if (a.n % kRowVec<typename Op::T> && launch_long<WHOLE, 512>(a, op, s)) return;
  }
  if (launch_cluster_with_operands<WHOLE>(a, op, s) || launch_long<WHOLE, 512>(a, op, s)) return;
  launch_again<512>(a, op, s);
}

// By WIDTH threads a row, or a block, with ELEMENTS each.
template <int ELEMENTS, int WIDTH, typename Op>
void launch_spread_by(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  constexpr bool IS_BLOCK = WIDTH > kWarp;
  using Short = typename SkewedShape<Op, typename Holding<Op, ELEMENTS, IS_BLOCK>::Shape>::Short;
  if constexpr (IS_BLOCK) {
    const int log_width = log2_at_least(ceil_div(a.n, ELEMENTS));
    launch_short<true, Short>(a, op, std::max(kLeastBlock, log_width), s);
  } else {
    constexpr int LOG_WIDTH = log2_of(WIDTH);
    launch_short<true, typename Short::template Wide<LOG_WIDTH>>(a, op, LOG_WIDTH, s);
  }
}

// By as few threads a row as hold it: by way of shared memory where `blocks` have work at once.
template <typename Op>
void launch_tiny(const ArgsOf<Op>& a, const Op& op, cudaStream_t s,
                 int blocks = 4 * multiprocessors()) {
  using Short = typename SkewedShape<Op, typename Holding<Op, 8, false>::Shape>::Short;
  const auto kernel = row_tiny_kernel<Op, Short>;
  static PerDeviceCache done;
  prepare(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared,
          done);
  const int log_width = log2_at_least(ceil_div(a.n, 8));
  const int most = Short::MAX_THREADS >> log_width;
  if (a.rows / most < blocks) return launch_short<false, Short>(a, op, log_width, s);
  int64_t step = a.n;
  for (int k = 0; k < Op::INPUTS; ++k) {
    step = std::max(step, tiny_step(a.n, a.stride[k], a.gap[k]));
  }
  const auto pitch = [&](int64_t rows) { return smem_bytes_for<typename Op::T>(rows * step) + 16; };
  const int64_t fit = std::max(1, (16 << 10) / (pitch(most) * Op::INPUTS));
  const int64_t each = std::clamp<int64_t>(a.rows / most / blocks, 1, fit);
  const auto grid = static_cast<unsigned>(ceil_div(a.rows, most * each));
  kernel<<<grid, Short::MAX_THREADS, pitch(most * each) * Op::INPUTS, s>>>(
      a, op, pitch(most * each), static_cast<int>(each), log_width);
}

// Rows whose length 16 bytes do not divide. False if they are too long for a block. Neighbouring
// lanes have neighbouring elements, so many of these are side by side.
template <typename Op>
bool launch_spread(const ArgsOf<Op>& a, const Op& op, cudaStream_t s) {
  constexpr int THREADS = Plan<Op>::THREADS;
  constexpr int HELD = Op::OPERANDS > 0 ? OperandPlan<Op>::MOST : Plan<Op>::HELD;
  if (a.n > THREADS * HELD) return false;
  if (a.n <= 4) return launch_spread_by<4, 1>(a, op, s), true;
  if (a.n <= 4 * 2) return launch_spread_by<4, 2>(a, op, s), true;
  if (a.n <= 4 * 4) return launch_spread_by<4, 4>(a, op, s), true;
  if constexpr (sizeof(typename Op::T) < 8) {
    if (a.n <= 8 * 8) return launch_tiny(a, op, s), true;
  } else {  // in shared memory they would lie in the same banks
    if (a.n <= 16 * 4) return launch_spread_by<4, 16>(a, op, s), true;
  }
  if (a.n <= 16 * 8) return launch_spread_by<8, 16>(a, op, s), true;
  if (a.n <= kWarp * 8) return launch_spread_by<8, kWarp>(a, op, s), true;
  if (a.n <= kWarp * 16) return launch_spread_by<16, kWarp>(a, op, s), true;
  if constexpr (!Plan<Op>::TWO && sizeof(typename Op::T) < 8) {
    if (a.n <= kWarp * 32) return launch_spread_by<32, kWarp>(a, op, s), true;
  }
  return launch_spread_by<HELD, THREADS>(a, op, s), true;
}

template <bool WHOLE, typename Op, typename Allocate>
void launch_of_length(const ArgsOf<Op>& a, const Op& op, cudaStream_t s, Allocate& allocate) {
  constexpr bool PLAIN = std::is_base_of_v<NoEpilogueOperands, Op>;
  if (launch_pieces<WHOLE>(a, op, s, allocate)) return;
  if constexpr (kRowVec<typename Op::T> == 1) {
    if (launch_spread(a, op, s)) return;
  } else if constexpr (PLAIN) {
    if (launch_in_block<WHOLE>(a, op, s)) return;
  } else {
    if (launch_in_block_with_operands<WHOLE>(a, op, s)) return;
  }
  if constexpr (PLAIN) {
    launch_beyond_block<WHOLE>(a, op, s);
  } else {
    launch_beyond_block_with_operands<WHOLE>(a, op, s);
  }
}

template <typename Op, typename = void>
struct OpAnywhere {
  static const Op& of(const Op& op) { return op; }
};
template <typename Op>
struct OpAnywhere<Op, std::void_t<typename Op::Anywhere>> {
  static typename Op::Anywhere of(const Op& op) { return op.anywhere(); }
};

struct NoMemory {
  void* operator()(int64_t) { return nullptr; }
};

// `allocate(bytes)` is asked for memory, for as long as what is launched takes, or gives none.
template <typename Op, typename Allocate = NoMemory>
cudaError_t launch(const ArgsOf<Op>& a, const Op& op, cudaStream_t s, Allocate allocate = {}) {
  using T = typename Op::T;
  constexpr int VEC = kRowVec<T>;
  bool wide = op.aligned() && a.n % VEC == 0;
  if constexpr (Op::OUTPUTS > 0) {
    using Y = Written<Op>;
    for (Y* const out : a.out.of) wide = wide && aligned<Y, VEC>(out, a.n);
  }
  for (int k = 0; k < Op::INPUTS; ++k) {
    wide = wide && aligned<T>(a.in[k], a.stride[k]) && a.gap[k] == 0;
  }
  if (VEC == 1 || wide) {
    launch_of_length<true>(a, op, s, allocate);
  } else if constexpr (VEC > 1) {
    const auto& any = OpAnywhere<Op>::of(op);
    if (a.n % VEC == 0 || !launch_spread(a, any, s)) launch_of_length<false>(a, any, s, allocate);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline::rows
