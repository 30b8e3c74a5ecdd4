// The losses of all rows together, and the weights of their targets, in an order that depends on
// the number of rows alone: a block sums kRowsOfBlock of them, one block what these have.
#pragma once

#include "impl_cuda_rows.cuh"

namespace fuseline::cross_entropy {

constexpr int kTotalThreads = 1024, kRowsOfBlock = 16 * kTotalThreads;

struct Total {
  Compensated loss, weight;
};

// Where the totals go: the reduced loss unless null, the weights of the targets and of all classes.
template <typename S>
struct Totals {
  S* loss;
  double* weights;
  bool mean;
  const S* weight;
  int64_t classes;
};

// Of the rows; a target that is no class has no weight.
template <typename S>
struct OfRows {
  const S* losses;
  const int64_t* target;
  int64_t ignore_index;

  __device__ __forceinline__ Total at(int64_t i, const Totals<S>& to) const {
    const int64_t c = target[i];
    const bool counts = c != ignore_index && 0 <= c && c < to.classes;
    const S weight = counts ? (to.weight ? to.weight[c] : S(1)) : S(0);
    return {{static_cast<double>(losses[i]), 0}, {static_cast<double>(weight), 0}};
  }
};

// Of what blocks have.
template <typename S>
struct OfBlocks {
  const Total* parts;

  __device__ __forceinline__ Total at(int64_t i, const Totals<S>&) const { return parts[i]; }
};

__device__ __forceinline__ Compensated block_total(const Compensated& part) {
  __syncthreads();  // before the next sum takes the last one's place
  return rows::row_part<true, kTotalThreads, 0>(part, kTotalThreads);
}

// Each block the next kRowsOfBlock of `count`. Writes parts or, if `parts` is null, the end.
template <typename S, typename From>
__global__ void __launch_bounds__(kTotalThreads)
    total_kernel(const __grid_constant__ From from, int64_t count, Total* parts,
                 const __grid_constant__ Totals<S> to) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kRowsOfBlock;
  const int64_t last = min(count, first + (parts ? kRowsOfBlock : count));
  Total sum{Compensated::none(), Compensated::none()};
  for (int64_t i = first + threadIdx.x; i < last; i += kTotalThreads) {
    const Total one = from.at(i, to);
    sum = {plus(sum.loss, one.loss), plus(sum.weight, one.weight)};
  }
  sum = {block_total(sum.loss), block_total(sum.weight)};
  if (parts) {
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
    return;
  }
  Compensated classes = Compensated::none();
  for (int64_t c = threadIdx.x; to.weight && c < to.classes; c += kTotalThreads) {
    classes = plus(classes, {static_cast<double>(to.weight[c]), 0});
  }
  classes = block_total(classes);
  if (threadIdx.x > 0) return;
  const double loss = whole(sum.loss), weight = whole(sum.weight);
  to.weights[0] = weight;
  to.weights[1] = to.weight ? whole(classes) : static_cast<double>(to.classes);
  if (to.loss) *to.loss = static_cast<S>(to.mean ? loss / weight : loss);
}

// `allocate(bytes)` gives memory for as long as what is launched takes.
template <typename S, typename Allocate>
cudaError_t launch(const OfRows<S>& of, int64_t rows, const Totals<S>& to, cudaStream_t stream,
                   Allocate allocate) {
  const auto all = total_kernel<S, OfRows<S>>;
  if (rows <= kRowsOfBlock) {
    all<<<1, kTotalThreads, 0, stream>>>(of, rows, nullptr, to);
    return cudaGetLastError();
  }
  const int64_t blocks = ceil_div(rows, kRowsOfBlock);
  Total* const parts = static_cast<Total*>(allocate(blocks * static_cast<int64_t>(sizeof(Total))));
  all<<<static_cast<unsigned>(blocks), kTotalThreads, 0, stream>>>(of, rows, parts, to);
  const auto rest = total_kernel<S, OfBlocks<S>>;
  rest<<<1, kTotalThreads, 0, stream>>>(OfBlocks<S>{parts}, blocks, nullptr, to);
  return cudaGetLastError();
}

}  // namespace fuseline::cross_entropy
