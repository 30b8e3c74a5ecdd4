// Chooses tiles for the kernels of GELU. They change no result but the order of dbias's sums, which
// depends on the shape and on the number of multiprocessors.
#pragma once

#include "fuseline/cuda/columns/column_sums.cuh"
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
template <Formula F, typename T, int VEC, int ROWS, bool ACROSS>
void forward_rows(ForwardOf<T> a, cudaStream_t stream) {
  const int64_t tiles = tiles_of(a.tiling, ROWS), high = kThreads >> a.tiling.log_lanes;
  a.apart = a.tiling.across == 1 ? tiles * high : high;
  const auto blocks = static_cast<unsigned>(tiles * a.tiling.across);
  forward_kernel<F, T, VEC, ROWS, ACROSS><<<blocks, kThreads, 0, stream>>>(a);
}

// Several rows a thread where that leaves enough blocks: their loads wait together.
template <Formula F, typename T, int VEC, bool ACROSS>
void forward_by(ForwardOf<T> a, int64_t rows, int64_t n, int sms, cudaStream_t stream) {
  a.tiling = tiling_of<VEC>(rows, n, kThreads);
  if (tiles_of(a.tiling, 1) * a.tiling.across <= 8 * sms) {
    return forward_rows<F, T, VEC, 1, ACROSS>(a, stream);
  }
  forward_rows<F, T, VEC, 2, ACROSS>(a, stream);
}

template <typename T>
bool is_wide(const ForwardOf<T>& a, int64_t n) {
  return aligned<T>(a.x, a.x_stride) && aligned<T>(a.y, n) && (a.biases || aligned<T>(a.bias, 0));
}
template <typename T>
bool is_wide(const BackwardOf<T>& a, int64_t n) {
  return aligned<T>(a.dy, a.dy_stride) && aligned<T>(a.x, a.x_stride) && aligned<T>(a.dx, n) &&
         (a.biases || aligned<T>(a.bias, 0));
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
  const int vec = is_wide(a, n) ? kVec<T> : 1;
  const int64_t blocks = ceil_div(rows, kThreads / kWarp), packs = ceil_div(n, vec);
  return std::clamp<int64_t>(8 * sms / std::max<int64_t>(1, blocks), 1,
                             ceil_div(packs, kPacks * kWarp));
}

// Sums are of as many parts of the rows as a GPU of so many multiprocessors is busy with. Of half
// types that many are better without sums, too.
template <typename T>
int64_t parts_of(const BackwardOf<T>& a, int64_t rows, int64_t n, bool sums, int sms) {
  using P = BackwardPlan<T>;
  if (a.biases) return parts_of_lines(a, rows, n, sms);
  const Tiling t =
      is_wide(a, n) ? backward_tiling<T, kVec<T>>(rows, n) : backward_tiling<T, 1>(rows, n);
  if (!sums && !P::HALF) return tiles_of(t, 2);
  return std::min(tiles_of(t, 1), std::max<int64_t>(1, P::BLOCKS * sms / t.across));
}

// Elements of a.partial.
template <typename T>
int64_t sums_of(const BackwardOf<T>& a, int64_t rows, int64_t n) {
  return a.parts * (a.biases ? rows : n);
}

template <Formula F, typename T, int VEC>
void backward_by(BackwardOf<T> a, int64_t rows, int64_t n, cudaStream_t stream) {
  using P = BackwardPlan<T>;
  a.tiling = backward_tiling<T, VEC>(rows, n);
  const auto blocks = static_cast<unsigned>(a.parts * a.tiling.across);
  if constexpr (!P::HALF) {
    if (a.partial) return backward_kernel<F, T, VEC, 1><<<blocks, kThreads, 0, stream>>>(a);
  }
  backward_kernel<F, T, VEC, 2><<<blocks, kThreads, 0, stream>>>(a);
}

template <Formula F, typename T, int VEC>
void backward_lines_by(BackwardOf<T> a, int64_t rows, int64_t n, cudaStream_t stream) {
  a.tiling = tiling_of<VEC>(rows, n, kWarp);
  const int64_t blocks = ceil_div(rows, kThreads >> a.tiling.log_lanes);
  backward_lines_kernel<F, T, VEC>
      <<<static_cast<unsigned>(blocks * a.parts), kThreads, 0, stream>>>(a);
}

template <Formula F, typename T>
cudaError_t launch(const ForwardOf<T>& a, int64_t rows, int64_t n, int sms, cudaStream_t stream) {
  constexpr int VEC = kVec<T>;
  const auto wide = a.biases ? forward_by<F, T, VEC, true> : forward_by<F, T, VEC, false>;
  const auto narrow = a.biases ? forward_by<F, T, 1, true> : forward_by<F, T, 1, false>;
  (is_wide(a, n) ? wide : narrow)(a, rows, n, sms, stream);
  return cudaGetLastError();
}

// `dbias`, if not null, gets the sum of a.partial's parts, if it is not these.
template <Formula F, typename T>
cudaError_t launch(const BackwardOf<T>& a, T* dbias, int64_t rows, int64_t n, cudaStream_t stream) {
  constexpr int VEC = kVec<T>;
  const auto wide = a.biases ? backward_lines_by<F, T, VEC> : backward_by<F, T, VEC>;
  const auto narrow = a.biases ? backward_lines_by<F, T, 1> : backward_by<F, T, 1>;
  if (rows > 0) (is_wide(a, n) ? wide : narrow)(a, rows, n, stream);
  if (dbias && static_cast<void*>(dbias) != a.partial) {
    const int64_t columns = a.biases ? a.biases : n, parts = sums_of(a, rows, n) / columns;
    finish_columns<Stat<T>, T>(a.partial, 0, static_cast<int>(parts), columns, dbias, nullptr,
                               stream);
  }
  return cudaGetLastError();
}

}  // namespace
}  // namespace fuseline::bias_gelu
