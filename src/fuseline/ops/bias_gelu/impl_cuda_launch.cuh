// Chooses tiles for the kernels of GELU. They change no result but the order of dbias's sums, which
// depends on the shape and on the number of multiprocessors.
#pragma once

#include "fuseline/cuda/columns/column_sums.cuh"
#include "fuseline/cuda/pointwise/pointwise_launch.cuh"
#include "impl_cuda_kernels.cuh"

namespace fuseline::bias_gelu {
namespace {

template <int VEC>
Tiling tiling_of(int64_t rows, int64_t n, int most_lanes) {
  const int64_t packs = ceil_div(n, VEC);
  const int log_lanes = log2_at_least(std::min<int64_t>(packs, most_lanes));
  return {rows, n, log_lanes, static_cast<unsigned>(ceil_div(packs, int64_t{1} << log_lanes))};
}

inline int64_t tiles_of(const Tiling& t, int rows_a_thread) {
  return ceil_div(t.rows, int64_t{rows_a_thread} * (kThreads >> t.log_lanes));
}

// A block that has whole rows has them from all over the matrix, one that has parts of rows has
// neighbours: as blocks follow each other, so do the addresses of each of their loads.
template <Formula F, typename T, int ROWS>
void forward_tiles(ForwardOf<T> a, cudaStream_t stream) {
  const int64_t tiles = tiles_of(a.tiling, ROWS), high = kThreads >> a.tiling.log_lanes;
  a.apart = a.tiling.across == 1 ? tiles * high : high;
  const auto blocks = static_cast<unsigned>(tiles * a.tiling.across);
  forward_kernel<F, T, ROWS><<<blocks, kThreads, 0, stream>>>(a);
}

// False of what lies not at multiples of 16 bytes, which the kernels of pointwise.cuh serve. Two
// rows a thread where that leaves enough blocks: their loads wait together.
template <Formula F, typename T>
bool launch_tiles(ForwardOf<T> a, int64_t rows, int64_t n, int sms, cudaStream_t stream) {
  a.tiling = tiling_of<kVec<T>>(rows, n, kThreads);
  const bool whole = aligned<T>(a.x, a.x_stride) && aligned<T>(a.y, n) && aligned<T>(a.bias, 0);
  if (!whole) return false;
  const bool few = tiles_of(a.tiling, 1) * a.tiling.across <= 8 * sms;
  (few ? forward_tiles<F, T, 1> : forward_tiles<F, T, 2>)(a, stream);
  return true;
}

// dy, x and what is written as rows, in the order of memory of the last.
struct Matrix {
  Axes<3> axes;
  int64_t rows, n, step[2];
  int64_t biases;  // as in BackwardOf
};

// Those of tensors of one shape with these strides, if kernels can read them so.
inline std::optional<Matrix> matrix_of(const int64_t* sizes, const int64_t* const (&strides)[3],
                                       int64_t dims) {
  constexpr int kMostDims = 64;
  struct Some {
    int64_t sizes[kMostDims], strides[3][kMostDims], count = 0;
    std::optional<Axes<3>> axes() const {
      return axes_of<3>(sizes, {strides[0], strides[1], strides[2]}, count);
    }
  } rows, columns;
  // Dimensions along a row: the last or, where others lie between its neighbours, these.
  const int64_t last = dims - 1, *order = strides[2];
  Matrix found{};
  found.rows = found.n = 1;
  for (int64_t d = 0; d < last; ++d) {
    if (sizes[d] != 1 && sizes[last] != 1 && order[d] < order[last]) found.biases = sizes[last];
  }
  for (int64_t d = 0; d < dims; ++d) {
    const bool along = found.biases ? order[d] < order[last] && d != last : d == last;
    Some& some = along ? columns : rows;
    (along ? found.n : found.rows) *= sizes[d];
    for (int k = 0; k < 3; ++k) some.strides[k][some.count] = strides[k][d];
    some.sizes[some.count++] = sizes[d];
  }
  found.step[0] = found.step[1] = 1;
  if (found.rows * found.n == 0) return found;
  const auto along = columns.axes(), across = rows.axes();
  if (!along || !across || along->count > 1) return std::nullopt;
  if (across->count > 1 && found.rows > pointwise::kMostOfPiece) return std::nullopt;
  for (int k = 0; k < 2 && along->count == 1; ++k) found.step[k] = along->of[0].steps[k];
  found.axes = *across;
  return found;
}

template <typename T>
BackwardOf<T> backward_of(const Matrix& m, const void* const (&in)[2]) {
  BackwardOf<T> a{};
  for (int k = 0; k < 2; ++k) {
    a.in[k] = static_cast<const T*>(in[k]);
    a.step[k] = m.step[k];
  }
  a.rows = pointwise::places_of<2>(m.axes);
  a.biases = m.biases;
  return a;
}

// Of few elements more threads have one each: packs from any address take longer to come apart.
constexpr int64_t kFewElements = 1 << 14;

template <typename T>
Access access_of(const BackwardOf<T>& a, int64_t rows, int64_t n) {
  bool aligned_all = a.rows.axes == 1 && aligned<T>(a.dx, n) && (a.biases || aligned<T>(a.bias, 0));
  bool packs = true;
  for (int k = 0; k < 2; ++k) {
    packs &= a.step[k] == 1 || a.step[k] == 0;
    aligned_all &= a.step[k] == 1 && aligned<T>(a.in[k], a.rows.steps[k][0]);
  }
  if (aligned_all) return Access::packs;
  const bool warps = ceil_div(n, kVec<T>) > kWarp / 2;  // side by side in a row
  return packs && warps && rows * n > kFewElements && !a.biases && sizeof(T) < 8 ? Access::anywhere
                                                                                 : Access::elements;
}

// As many threads side by side as leave none without a row.
template <typename T, int VEC>
Tiling backward_tiling(int64_t rows, int64_t n) {
  const int high = static_cast<int>(std::min<int64_t>(rows, kThreads));
  return tiling_of<VEC>(rows, n, std::max(BackwardPlan<T>::LANES, kThreads >> log2_at_least(high)));
}

// Of each row: as many as a GPU of so many multiprocessors is busy with, of some packs a lane.
template <typename T>
int64_t parts_of_lines(const BackwardOf<T>& a, int64_t rows, int64_t n, int sms) {
  constexpr int64_t kPacks = 8;
  const int vec = access_of(a, rows, n) == Access::packs ? kVec<T> : 1;
  const int64_t blocks = ceil_div(rows, kThreads / kWarp), packs = ceil_div(n, vec);
  return std::clamp<int64_t>(8 * sms / std::max<int64_t>(1, blocks), 1,
                             ceil_div(packs, kPacks * kWarp));
}

// Rows that a thread has on their way at once; of packs from any address two words each.
template <Access ACCESS>
constexpr int kOnTheirWay = ACCESS == Access::elements ? 4
                            : ACCESS == Access::packs  ? 2
                                                       : 1;

// Sums are of as many parts of the rows as a GPU of so many multiprocessors is busy with, or of one
// where that takes a thread two steps, which take less time than to add up parts. Of half types
// that many are better without sums, too.
template <typename T>
int64_t parts_of(const BackwardOf<T>& a, int64_t rows, int64_t n, bool sums, int sms) {
  using P = BackwardPlan<T>;
  if (a.biases) return parts_of_lines(a, rows, n, sms);
  const bool single = access_of(a, rows, n) == Access::elements;
  const Tiling t = single ? backward_tiling<T, 1>(rows, n) : backward_tiling<T, kVec<T>>(rows, n);
  const int at_once = single ? kOnTheirWay<Access::elements> : kOnTheirWay<Access::packs>;
  if (sums && tiles_of(t, 2 * at_once) <= 1) return 1;
  if (!sums && !P::HALF) return tiles_of(t, 2);
  return std::min(tiles_of(t, 1), std::max<int64_t>(1, P::BLOCKS * sms / t.across));
}

// Elements of a.partial: none of one part, which is dbias.
template <typename T>
int64_t sums_of(const BackwardOf<T>& a, int64_t rows, int64_t n) {
  const int64_t sums = a.parts * (a.biases ? rows : n);
  return sums == (a.biases ? a.biases : n) ? 0 : sums;
}

template <Formula F, typename T, Access ACCESS>
void backward_by(BackwardOf<T> a, int64_t rows, int64_t n, cudaStream_t stream) {
  using P = BackwardPlan<T>;
  constexpr int VEC = ACCESS == Access::elements ? 1 : kVec<T>;
  a.tiling = backward_tiling<T, VEC>(rows, n);
  const auto blocks = static_cast<unsigned>(a.parts * a.tiling.across);
  // One row at a time of fp32's packs with sums; and where a thread has no more: less code.
  const bool one = ACCESS == Access::packs ? !P::HALF && a.partial
                                           : a.parts * (kThreads >> a.tiling.log_lanes) >= rows;
  if constexpr (ACCESS == Access::elements || (ACCESS == Access::packs && !P::HALF)) {
    if (one) return backward_kernel<F, T, ACCESS, 1><<<blocks, kThreads, 0, stream>>>(a);
  }
  constexpr int ROWS = kOnTheirWay<ACCESS>;
  backward_kernel<F, T, ACCESS, ROWS><<<blocks, kThreads, 0, stream>>>(a);
}

template <Formula F, typename T, int VEC>
void backward_lines_by(BackwardOf<T> a, int64_t rows, int64_t n, cudaStream_t stream) {
  a.tiling = tiling_of<VEC>(rows, n, kWarp);
  const int64_t blocks = ceil_div(rows, kThreads >> a.tiling.log_lanes);
  backward_lines_kernel<F, T, VEC>
      <<<static_cast<unsigned>(blocks * a.parts), kThreads, 0, stream>>>(a);
}

// `dbias`, if not null, gets the sum of a.partial's parts, or is a.dbias.
template <Formula F, typename T>
cudaError_t launch(const BackwardOf<T>& a, T* dbias, int64_t rows, int64_t n, cudaStream_t stream) {
  if (rows == 0 && !dbias) return cudaSuccess;
  const Access access = access_of(a, rows, n);
  if (a.biases) {
    const bool whole = access == Access::packs;
    (whole ? backward_lines_by<F, T, kVec<T>> : backward_lines_by<F, T, 1>)(a, rows, n, stream);
  } else if (access == Access::packs) {
    backward_by<F, T, Access::packs>(a, rows, n, stream);
  } else if (access == Access::elements) {
    backward_by<F, T, Access::elements>(a, rows, n, stream);
  } else if constexpr (sizeof(T) < 8) {
    backward_by<F, T, Access::anywhere>(a, rows, n, stream);
  }
  if (a.partial) {
    const int64_t columns = a.biases ? a.biases : n, parts = sums_of(a, rows, n) / columns;
    finish_columns<Stat<T>, T>(a.partial, 0, static_cast<int>(parts), columns, dbias, nullptr,
                               stream);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline::bias_gelu
