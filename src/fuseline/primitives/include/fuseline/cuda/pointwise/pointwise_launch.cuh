// Launches of elementwise operators: how many elements a thread has, and pieces of large problems.
#pragma once

#include "fuseline/cuda/copies_launch.cuh"
#include "fuseline/cuda/pointwise/pointwise.cuh"

namespace fuseline::pointwise {
namespace {

// Elements that a piece may have.
constexpr int64_t kMostOfPiece = 1 << 30;

// The inputs' axes, the last side of which is the order of the run.
template <int INPUTS>
Places<INPUTS> places_of(const Axes<INPUTS + 1>& axes) {
  Places<INPUTS> p{};
  p.numel = static_cast<unsigned>(axes.numel());
  p.axes = std::max(1, axes.count);
  p.all_dense = true;
  for (int k = 0; k < INPUTS; ++k) p.dense[k] = true;
  p.sizes[0] = divider(1);  // of a single element
  for (int d = 0; d < axes.count; ++d) {
    const auto& axis = axes.of[axes.count - 1 - d];
    p.sizes[d] = divider(std::min(axis.size, kMostOfPiece));  // more is one axis, and not divided
    for (int k = 0; k < INPUTS; ++k) {
      p.steps[k][d] = axis.steps[k];
      p.dense[k] &= axis.steps[k] == axis.steps[INPUTS];
      p.all_dense &= p.dense[k];
    }
  }
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

// Of a run of more than a GPU's threads have at once. Much to do for a thread hides more, little
// begins sooner.
template <typename Op>
cudaError_t launch_long_run(const Problem<Op>& a, cudaStream_t stream) {
  constexpr bool HALF = sizeof(typename Op::T) == 2;
  if constexpr (HALF || Op::INPUTS > 1) {
    if (a.places.numel > 32 << 20) return launch_run<Op, 64>(a, stream);
  }
  return launch_run<Op, HALF ? 32 : 16>(a, stream);
}

// Packs of 16 bytes where there is enough for all multiprocessors to do. Of little each thread has
// 4 bytes, which are sooner done, and so where an input's elements lie apart: lanes then read those
// that are next to each other.
template <typename Op>
cudaError_t launch_piece(const Problem<Op>& a, int sms, cudaStream_t stream) {
  using T = typename Op::T;
  constexpr int WIDE = kVec<T>, NARROW = sizeof(T) == 2 ? 2 : 1;
  constexpr int64_t FEW = 512 * NARROW, MANY = 1024 * WIDE;  // elements of a multiprocessor
  const Places<Op::INPUTS>& p = a.places;
  bool wide = p.numel > FEW * sms && p.sizes[0].by >= WIDE, whole = aligned<T>(a.to, 0);
  for (int k = 0; k < Op::INPUTS; ++k) {
    wide &= p.dense[k] || p.steps[k][0] == 0 || p.steps[k][0] == 1;
    whole &= aligned<T>(a.in[k], 0);
  }
  if constexpr (Op::RUNS) {
    if (p.all_dense && whole && p.numel > MANY * sms) return launch_long_run(a, stream);
  }
  return wide ? launch_packs<Op, WIDE>(a, stream) : launch_packs<Op, NARROW>(a, stream);
}

// In pieces of at most `most` elements, halves of the slowest axis.
template <typename Op>
cudaError_t launch(Problem<Op> a, Axes<Op::INPUTS + 1> axes, int sms, cudaStream_t stream,
                   int64_t most = kMostOfPiece) {
  if (axes.numel() <= most) {
    a.places = places_of<Op::INPUTS>(axes);
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
  for (int k = 0; k < Op::INPUTS; ++k) a.in[k] += half * outer.steps[k];
  a.to += half * outer.steps[Op::INPUTS];
  outer.size = size - half;
  return launch(a, axes, sms, stream, most);
}

}  // namespace
}  // namespace fuseline::pointwise
