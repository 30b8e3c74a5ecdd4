// The kernels of GELU: blocks own tiles of some rows and columns, each thread a pack of columns.
#pragma once

#include "impl_cuda_gate.cuh"

namespace fuseline::bias_gelu {

constexpr int kThreads = 256;

// How the backward works: threads side by side, and blocks that a multiprocessor should hold
// for.
template <typename T>
struct BackwardPlan {
  static constexpr bool HALF = sizeof(T) == 2;
  static constexpr int LANES = HALF ? 64 : 32, BLOCKS = HALF ? 3 : 4;
};

// How a block lies on a matrix: 2^log_lanes threads side by side, the others on rows below.
// `across` blocks, neighbours, own the columns of the same rows.
struct Tiling {
  int64_t rows, n;
  int log_lanes;
  unsigned across;

  __device__ __forceinline__ int lanes() const { return 1 << log_lanes; }
  __device__ __forceinline__ int high() const { return kThreads >> log_lanes; }
  __device__ __forceinline__ int lane() const { return threadIdx.x & (lanes() - 1); }
  __device__ __forceinline__ int row() const { return threadIdx.x >> log_lanes; }
  __device__ __forceinline__ int64_t first_pack() const {
    return static_cast<int64_t>(blockIdx.x % across) << log_lanes;
  }
  __device__ __forceinline__ int64_t index() const { return blockIdx.x / across; }
};

// T's inputs by row stride; y and dx are contiguous. `biases`: how many there are if each row has
// one, row r that of r % biases; 0 if each column has one.
template <typename T>
struct ForwardOf {
  Tiling tiling;
  int64_t apart;  // rows from one of a thread's to the next
  const T *x, *bias;
  T* y;
  int64_t x_stride, biases;
};
// dx and partial may be null.
template <typename T>
struct BackwardOf {
  Tiling tiling;
  const T *dy, *x, *bias;
  T* dx;
  Stat<T>* partial;
  int64_t dy_stride, x_stride, biases;
  int64_t parts;  // of the rows; where each has a bias, of each of them
};

// The bias of VEC columns of a row.
template <bool ACROSS, int VEC, typename Args>
__device__ __forceinline__ auto bias_at(const Args& a, int64_t row, int64_t column) {
  using T = std::remove_cv_t<std::remove_pointer_t<decltype(a.bias)>>;
  if constexpr (ACROSS) {
    Values<Stat<T>, VEC> same;
    const bool few = a.tiling.rows <= 0xffffffff;  // whose division is shorter
    const int64_t index =
        few ? static_cast<uint32_t>(row) % static_cast<uint32_t>(a.biases) : row % a.biases;
    const Stat<T> bias = to_stat(a.bias[index]);
    for (auto& v : same.v) v = bias;
    return same;
  } else {
    return unpack<Stat<T>>(load<T, VEC>(a.bias + column));
  }
}

template <Formula F, typename T, int VEC, int ROWS, bool ACROSS>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ ForwardOf<T> a) {
  using S = Stat<T>;
  const Tiling& t = a.tiling;
  const int64_t column = (t.first_pack() + t.lane()) * VEC;
  const int64_t first = t.index() * (a.apart == t.high() ? ROWS * t.high() : t.high()) + t.row();
  if (column >= t.n) return;
  Pack<T, VEC> x[ROWS];
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int64_t row = first + i * a.apart;
    if (row < t.rows) x[i] = load<T, VEC>(retained(a.x) + row * a.x_stride + column);
  }
  auto bias = bias_at<ACROSS, VEC>(a, first < t.rows ? first : 0, column);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int64_t row = first + i * a.apart;
    if (row >= t.rows) break;
    if (ACROSS && i > 0) bias = bias_at<ACROSS, VEC>(a, row, column);
    auto v = unpack<S>(x[i]);
#pragma unroll
    for (int k = 0; k < VEC; ++k) v.v[k] = gelu<F, T>(v.v[k], bias.v[k]);
    store<T, VEC>(a.y + row * t.n + column, pack<T>(v));
  }
}

// Every parts-th tile of ROWS rows a thread. Sums of kRowsAtOnce rows are added in fp64: one long
// sum in fp32 would lose the budget's last bits.
template <Formula F, typename T, int VEC, int ROWS>
__global__ void __launch_bounds__(kThreads, BackwardPlan<T>::BLOCKS)
    backward_kernel(const __grid_constant__ BackwardOf<T> a) {
  using S = Stat<T>;
  constexpr int kRowsAtOnce = 16;
  const Tiling& t = a.tiling;
  const int64_t column = (t.first_pack() + t.lane()) * VEC, step = a.parts * t.high();
  const bool inside = column < t.n;
  double total[VEC] = {};
  Values<S, VEC> bias{};
  if (inside) bias = unpack<S>(load<T, VEC>(a.bias + column));
  for (int64_t first = t.index() * t.high() + t.row(); inside && first < t.rows;
       first += kRowsAtOnce * step) {
    S sums[VEC] = {};
    for (int64_t row = first; row < min(t.rows, first + kRowsAtOnce * step); row += ROWS * step) {
      Pack<T, VEC> dy[ROWS], x[ROWS];
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        if (row + i * step >= t.rows) break;
        dy[i] = load<T, VEC>(retained(a.dy) + (row + i * step) * a.dy_stride + column);
        x[i] = load<T, VEC>(retained(a.x) + (row + i * step) * a.x_stride + column);
      }
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        if (row + i * step >= t.rows) break;
        auto dx = unpack<S>(dy[i]);
        const auto v = unpack<S>(x[i]);
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
          dx.v[k] *= gelu_slope<F>(v.v[k] + bias.v[k]);
          sums[k] += dx.v[k];
        }
        if (a.dx) store<T, VEC>(a.dx + (row + i * step) * t.n + column, pack<T>(dx));
      }
    }
#pragma unroll
    for (int k = 0; k < VEC; ++k) total[k] += sums[k];
  }
  if (!a.partial) return;
  __shared__ double shared[kThreads * VEC];
  const int width = t.lanes() * VEC;
#pragma unroll
  for (int k = 0; k < VEC; ++k) shared[t.row() * width + t.lane() * VEC + k] = total[k];
  __syncthreads();
  for (int c = threadIdx.x; c < width; c += kThreads) {
    const int64_t to = t.first_pack() * VEC + c;
    if (to >= t.n) break;
    double sum = 0;
    for (int r = 0; r < t.high(); ++r) sum += shared[r * width + c];
    a.partial[t.index() * t.n + to] = static_cast<S>(sum);
  }
}

// Where each row has a bias: some lanes of a warp own a part of a row, and its sum.
template <Formula F, typename T, int VEC>
__global__ void __launch_bounds__(kThreads)
    backward_lines_kernel(const __grid_constant__ BackwardOf<T> a) {
  using S = Stat<T>;
  const Tiling& t = a.tiling;
  const int64_t row = blockIdx.x / a.parts * t.high() + t.row(), part = blockIdx.x % a.parts;
  const int64_t step = int64_t{t.lanes()} * VEC;
  const int64_t share = (t.n + a.parts * step - 1) / (a.parts * step) * step;
  const int64_t end = row < t.rows ? min(t.n, (part + 1) * share) : 0;
  const auto bias = bias_at<true, VEC>(a, row < t.rows ? row : 0, 0);
  double total = 0;
  for (int64_t column = part * share + t.lane() * VEC; column < end; column += step) {
    auto dx = unpack<S>(load<T, VEC>(retained(a.dy) + row * a.dy_stride + column));
    const auto x = unpack<S>(load<T, VEC>(retained(a.x) + row * a.x_stride + column));
    S sum = 0;
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
      dx.v[k] *= gelu_slope<F>(x.v[k] + bias.v[k]);
      sum += dx.v[k];
    }
    if (a.dx) store<T, VEC>(a.dx + row * t.n + column, pack<T>(dx));
    total += sum;
  }
  if (!a.partial) return;
  total = lanes_sum(total, t.lanes());
  if (t.lane() == 0 && row < t.rows) a.partial[part * t.rows + row] = static_cast<S>(total);
}

}  // namespace fuseline::bias_gelu
