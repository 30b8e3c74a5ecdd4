// Sums over columns: the partial rows that blocks leave, added up.
#pragma once

#include "fuseline/cuda/blocks.cuh"

namespace fuseline {

// Owns VEC columns a lane of one plane; reads all its partial rows in a fixed order, warps side by
// side; writes the sums, of plane 1 to `second`, rounded once. Adds in fp64: in fp32 these few sums
// of large numbers cost more accuracy than the many before them.
template <typename S, typename W, int VEC, int WARPS>
__global__ void __launch_bounds__(WARPS* kWarp)
    finish_kernel(const S* partial, int64_t plane, int parts, int64_t n, W* first_out,
                  W* second_out) {
  constexpr int COLS = kWarp * VEC, AT_ONCE = 8;
  __shared__ double sums[WARPS][COLS];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * COLS, col = first + lane * VEC;
  W* const out = blockIdx.y ? second_out : first_out;
  partial += blockIdx.y * plane;
  double sum[VEC] = {};
  for (int start = warp; start < parts; start += AT_ONCE * WARPS) {
    Pack<S, VEC> loaded[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
      const int part = start + i * WARPS;
      loaded[i] = Pack<S, VEC>{};
      if (part < parts && col < n) loaded[i] = load<S, VEC>(partial + part * n + col);
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) sum[v] += loaded[i].v[v];
    }
  }
#pragma unroll
  for (int v = 0; v < VEC; ++v) sums[warp][lane * VEC + v] = sum[v];
  __syncthreads();
  const int mine = threadIdx.x;
  if (mine >= COLS || first + mine >= n) return;
  double total = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) total += sums[w][mine];
  out[first + mine] = round_to<W, double>(total);
}

namespace {

template <typename S, typename W, int VEC, int WARPS>
void finish_by(const S* partial, int64_t plane, int parts, int64_t n, W* first, W* second,
               cudaStream_t stream) {
  static_assert(VEC <= WARPS);  // a thread sums a column
  const dim3 grid(static_cast<unsigned>(ceil_div(n, kWarp * VEC)), 1 + (second != nullptr));
  finish_kernel<S, W, VEC, WARPS>
      <<<grid, WARPS * kWarp, 0, stream>>>(partial, plane, parts, n, first, second);
}

// Adds up `parts` rows of n sums, and those of a second plane if there is a `second`. Where tiles
// of packs are as many as multiprocessors, they need fewer accesses and blocks.
template <typename S, typename W>
void finish_columns(const S* partial, int64_t plane, int parts, int64_t n, W* first, W* second,
                    cudaStream_t stream) {
  constexpr int VEC = kVec<S>;
  constexpr int64_t kWide = 16384;
  if (parts <= 4) return finish_by<S, W, 1, 1>(partial, plane, parts, n, first, second, stream);
  const auto by = n >= kWide && n % VEC == 0
                      ? (parts <= 64 ? finish_by<S, W, VEC, 8> : finish_by<S, W, VEC, 16>)
                      : (parts <= 64 ? finish_by<S, W, 1, 8> : finish_by<S, W, 1, kWarp>);
  by(partial, plane, parts, n, first, second, stream);
}

}  // namespace
}  // namespace fuseline
