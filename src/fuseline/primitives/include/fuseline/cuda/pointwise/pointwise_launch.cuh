// Launches of elementwise operators: how many elements a thread has, and pieces of large problems.
#pragma once

#include "fuseline/cuda/copies_launch.cuh"
#include "fuseline/cuda/pointwise/pointwise.cuh"

namespace fuseline::pointwise {
namespace {

// Elements that a piece may have.
constexpr int64_t kMostOfPiece = 1 << 30;

// Those of these axes, the last side of which is the order of the run; with GAPS it has a place
// itself.
template <int SIDES, int INPUTS = SIDES, int GAPS = 0>
Places<SIDES + GAPS, INPUTS> places_of(const Axes<SIDES + 1>& axes) {
  Places<SIDES + GAPS, INPUTS> p{};
  p.numel = static_cast<unsigned>(axes.numel());
  p.axes = std::max(1, axes.count);
  p.all_dense = p.along_rows = true;
  for (int k = 0; k < INPUTS; ++k) p.dense[k] = true;
  p.sizes[0] = divider(1);  // of a single element
  int64_t step = 1;         // in the run
  for (int d = 0; d < axes.count; ++d) {
    const auto& axis = axes.of[axes.count - 1 - d];
    p.sizes[d] = divider(std::min(axis.size, kMostOfPiece));  // more is one axis, and not divided
    for (int k = 0; k < SIDES + GAPS; ++k) p.steps[k][d] = axis.steps[k];
    for (int k = 0; k < INPUTS; ++k) {
      p.dense[k] &= axis.steps[k] == step;
      p.all_dense &= p.dense[k];
    }
    step *= axis.size;
  }
  for (int k = INPUTS; k < SIDES; ++k) p.along_rows &= p.steps[k][0] == 0;
  return p;
}

// Whether an input that is to be read in another order had better be copied first, by tiles: read
// directly each element is a sector of 32 bytes from L2 and a line of L1's. Of 2^18 elements that
// is 8 MB and 1.2 us of what L1s look up, 3 us, about as long as the copy takes.
inline bool is_copied(const int64_t* sizes, const int64_t* from, const int64_t* to, int64_t dims) {
  constexpr int64_t kLeast = 1 << 18;
  const auto copy = copy_of(sizes, from, to, dims);
  return copy && copy->numel() >= kLeast && by_tiles(*copy);
}

template <typename Op, int VEC>
cudaError_t launch_packs(const Problem<Op>& a, cudaStream_t stream) {
  const auto blocks = ceil_div(a.places.numel, int64_t{kThreads} * VEC);
  pointwise_kernel<Op, VEC><<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <typename Op, int BYTES>
cudaError_t launch_run(const Problem<Op>& a, cudaStream_t stream) {
  constexpr int64_t EACH = BYTES / sizeof(typename Op::T);
  const auto blocks = static_cast<unsigned>(ceil_div(a.places.numel, kThreads * EACH));
  run_kernel<Op, BYTES><<<blocks, kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

// Of a run of more than a GPU's threads have at once. Much to do for a thread hides more, as the
// rows that it finds do; little begins sooner.
template <typename Op>
cudaError_t launch_long_run(const Problem<Op>& a, cudaStream_t stream) {
  constexpr bool HALF = sizeof(typename Op::T) == 2;
  if constexpr (Op::OF_ROWS > 0) {
    return launch_run<Op, 64 / Op::INPUTS>(a, stream);
  } else {
    if constexpr (HALF || Op::INPUTS > 1) {
      if (a.places.numel > 32 << 20) return launch_run<Op, 64>(a, stream);
    }
    return launch_run<Op, HALF ? 32 : 16>(a, stream);
  }
}

// Packs of 16 bytes where there is enough for all multiprocessors to do. Of little each thread has
// 4 bytes, which are sooner done, and so where an input's elements lie apart: lanes then read those
// that are next to each other.
template <typename Op>
cudaError_t launch_piece(const Problem<Op>& a, int sms, cudaStream_t stream) {
  using T = typename Op::T;
  constexpr int WIDE = kVec<T>, NARROW = sizeof(T) == 2 ? 2 : 1;
  constexpr int64_t FEW = 512 * NARROW, MANY = 1024 * WIDE;  // elements of a multiprocessor
  const auto& p = a.places;
  const bool packs = p.sizes[0].by >= WIDE && p.along_rows;
  bool wide = p.numel > FEW * sms && packs, whole = true;
  for (const T* to : a.to) whole &= aligned<T>(to, 0);
  for (int k = 0; k < Op::INPUTS; ++k) {
    wide &= p.dense[k] || p.steps[k][0] == 0 || p.steps[k][0] == 1;
    whole &= aligned<T>(a.in[k], 0);
  }
  if constexpr (Op::RUNS) {
    if (p.all_dense && whole && packs && p.numel > MANY * sms) return launch_long_run(a, stream);
  }
  return wide ? launch_packs<Op, WIDE>(a, stream) : launch_packs<Op, NARROW>(a, stream);
}

// Many elements of rows that lie side by side. False of others.
template <typename Op>
bool launch_columns(Problem<Op> a, Axes<kSides<Op> + 1> axes, int sms, cudaStream_t stream) {
  using T = typename Op::T;
  constexpr int PAIR = sizeof(T) == 2 ? 2 : 1;
  constexpr int64_t MANY = 1024 * kVec<T>, FULL = kResidentThreads;  // of a multiprocessor
  constexpr int64_t LEAST = 4, MOST = 32, GRID = 65535;              // of a thread; of blocks
  if (axes.count < 2 || axes.numel() < MANY * sms) return false;
  const auto side_by_side = axes.of[axes.count - 1], down = axes.of[axes.count - 2];
  const auto along_rows = [](const auto& axis) {
    return std::all_of(axis.steps + Op::INPUTS, axis.steps + kSides<Op>,
                       [](int64_t step) { return step == 0; });
  };
  if (along_rows(side_by_side) || !along_rows(down) || side_by_side.size < kWarp) return false;
  bool pairs = side_by_side.size % PAIR == 0;
  for (const T* to : a.to) pairs &= aligned<T, PAIR>(to, 0);
  for (int k = 0; k < Op::INPUTS; ++k) {
    pairs &= side_by_side.steps[k] == 1 && aligned<T, PAIR>(a.in[k], 0);
    for (int d = 0; d + 1 < axes.count; ++d) pairs &= axes.of[d].steps[k] % PAIR == 0;
  }
  const int vec = pairs ? PAIR : 1;
  const int64_t each = std::clamp(ceil_div(axes.numel() / vec, FULL * sms), LEAST, MOST);
  axes.of[--axes.count - 1] = side_by_side;
  a.places = places_of<kSides<Op>, Op::INPUTS>(axes);
  Down<Op::INPUTS> by{};
  by.size = static_cast<unsigned>(down.size);
  by.each = static_cast<unsigned>(std::max(each, ceil_div(down.size, GRID)));
  std::copy_n(down.steps, Op::INPUTS, by.steps);
  const dim3 grid(static_cast<unsigned>(ceil_div(a.places.numel, int64_t{kThreads} * vec)),
                  static_cast<unsigned>(ceil_div(down.size, by.each)));
  const auto kernel = pairs ? columns_kernel<Op, PAIR> : columns_kernel<Op, 1>;
  kernel<<<grid, kThreads, 0, stream>>>(a, by);
  return true;
}

// Of an element of operand k.
template <typename Op>
int64_t bytes_of(int k) {
  if constexpr (Op::OF_ROWS > 0) {
    if (k >= Op::INPUTS) return Op::ROW_BYTES[k - Op::INPUTS];
  }
  return sizeof(typename Op::T);
}

// In pieces of at most `most` elements, halves of the slowest axis.
template <typename Op>
cudaError_t launch(Problem<Op> a, Axes<kSides<Op> + 1> axes, int sms, cudaStream_t stream,
                   int64_t most = kMostOfPiece) {
  if (axes.numel() <= most) {
    if constexpr (Op::OF_ROWS > 0) {
      if (launch_columns(a, axes, sms, stream)) return cudaGetLastError();
    }
    a.places = places_of<kSides<Op>, Op::INPUTS, Op::GAPS>(axes);
    return launch_piece(a, sms, stream);
  }
  auto& outer = axes.of[0];
  if (outer.size == 1) {
    std::copy(axes.of + 1, axes.of + axes.count--, axes.of);
    return launch(a, axes, sms, stream, most);
  }
  constexpr int64_t kEven = 64;  // elements, of which half are whole packs
  const int64_t size = outer.size, half = size < kEven ? size / 2 : size / kEven * (kEven / 2);
  outer.size = half;
  const cudaError_t error = launch(a, axes, sms, stream, most);
  if (error != cudaSuccess) return error;
  for (int k = 0; k < kSides<Op>; ++k) {
    a.in[k] = static_cast<const char*>(a.in[k]) + half * outer.steps[k] * bytes_of<Op>(k);
  }
  for (auto& to : a.to) to += half * outer.steps[kSides<Op>];
  outer.size = size - half;
  return launch(a, axes, sms, stream, most);
}

}  // namespace
}  // namespace fuseline::pointwise
