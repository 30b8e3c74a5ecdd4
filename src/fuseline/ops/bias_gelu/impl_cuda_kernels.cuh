// The kernels of GELU. Those of pointwise.cuh serve its forward but where rows lie at multiples of
// 16 bytes: there, and backwards, blocks own tiles of some rows and columns.
#pragma once

#include "fuseline/cuda/pointwise/gelu.cuh"
#include "fuseline/cuda/pointwise/pointwise.cuh"

namespace fuseline::bias_gelu {

using namespace gelu;

constexpr int kThreads = 256;

template <Formula F, typename T>
__device__ __forceinline__ Stat<T> value_of(Stat<T> x, Stat<T> bias) {
  if constexpr (sizeof(T) == 2) {
    const Stat<T> h = x + bias;
    return h * share_and_slope<F>(h).share;
  } else {
    const Parts<T> h = sum_of(x, bias);
    return h.high * share_of<F>(h);
  }
}

// dy times the derivative of h * share(h), which is judged by the largest and does without second
// parts; or dy where ReLU let it through, and 0 elsewhere, also of NaN.
template <Formula F, typename S>
__device__ __forceinline__ S gradient_of(S dy, S h) {
  if constexpr (F == Formula::relu) {
    return h <= 0 ? 0 : dy;
  } else {
    const auto [share, slope] = share_and_slope<F>(h);
    return dy * fma(h, slope, share);
  }
}

// y of x and bias.
template <Formula F, typename T_>
struct Gelu {
  using T = T_;
  static constexpr int INPUTS = 2, OF_ROWS = 0, OUTPUTS = 1, GAPS = 0;
  static constexpr bool RUNS = false;

  template <int VEC>
  static __device__ __forceinline__ auto of(const Values<Stat<T>, VEC> (&in)[INPUTS]) {
    Values<Stat<T>, VEC> y;
#pragma unroll
    for (int v = 0; v < VEC; ++v) y.v[v] = value_of<F, T>(in[0].v[v], in[1].v[v]);
    return y;
  }
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

// y is contiguous.
template <typename T>
struct ForwardOf {
  Tiling tiling;
  int64_t apart;  // rows from one of a thread's to the next
  const T *x, *bias;
  T* y;
  int64_t x_stride;
};

template <Formula F, typename T, int ROWS>
__global__ void __launch_bounds__(kThreads) forward_kernel(const __grid_constant__ ForwardOf<T> a) {
  constexpr int VEC = 16 / sizeof(T);
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
  const Pack<T, VEC> bias = load<T, VEC>(a.bias + column);
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    const int64_t row = first + i * a.apart;
    if (row >= t.rows) break;
    const auto made = pointwise::made_of<Gelu<F, T>, VEC>({x[i], bias});
    store<T, VEC>(a.y + row * t.n + column, made.of[0]);
  }
}

// How elements of a row are read and written: packs at multiples of their size, packs from any
// address, by lanes of whole warps, or single elements, of which inputs may have any step.
enum class Access { packs, anywhere, elements };

// Inputs of the backward, dy and x, by rows that lie anyhow, whose elements are `step` apart; dx is
// dense. `biases`: how many there are if each row has one, row r that of r % biases; 0 if each
// column has one. Of what is not asked for, and of a bias that is 0, the pointers are null.
template <typename T>
struct BackwardOf {
  Tiling tiling;
  const T *in[2], *bias;
  T *dx, *dbias;     // dbias, if there is one part of it
  Stat<T>* partial;  // if there are several
  pointwise::Places<2> rows;
  int64_t step[2];
  int64_t biases;
  int64_t parts;  // of the rows; where each has a bias, of each of them

  // The elements of a row from a column on, of which there are `count`.
  template <Access ACCESS, int VEC>
  __device__ __forceinline__ void load(pointwise::Loaded<T, VEC> (&to)[2], int64_t row,
                                       int64_t column, int64_t count) const {
    int64_t at[2] = {row * rows.steps[0][0], row * rows.steps[1][0]};
    if (ACCESS != Access::packs && rows.axes > 1) rows.find(static_cast<unsigned>(row), at);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const T* const from = retained(in[k]) + at[k];
      if constexpr (ACCESS == Access::packs) {
        to[k].low = *reinterpret_cast<const uint4*>(from + column);
        to[k].skew = 0;
      } else {
        pointwise::take<T, VEC>(to[k], from + column * step[k], step[k], count);
      }
    }
  }
};

// How the backward works: threads side by side, and blocks that a multiprocessor should hold for.
template <typename T>
struct BackwardPlan {
  static constexpr bool HALF = sizeof(T) == 2;
  static constexpr int LANES = HALF ? 64 : 32, BLOCKS = HALF ? 3 : 4;
};

// Every parts-th tile of ROWS rows a thread. Sums of kRowsAtOnce rows are added in fp64: one long
// sum in fp32 would lose the budget's last bits.
template <Formula F, typename T, Access ACCESS, int ROWS>
__global__ void __launch_bounds__(kThreads, BackwardPlan<T>::BLOCKS)
    backward_kernel(const __grid_constant__ BackwardOf<T> a) {
  using S = Stat<T>;
  constexpr int kRowsAtOnce = 16, VEC = ACCESS == Access::elements ? 1 : 16 / sizeof(T);
  const Tiling& t = a.tiling;
  const int64_t column = (t.first_pack() + t.lane()) * VEC, step = a.parts * t.high();
  const bool inside = column < t.n;
  const int64_t left = inside ? t.n - column : 0;
  double total[VEC] = {};
  Values<S, VEC> bias{};
  bool begins = true;
  const bool works = ACCESS == Access::anywhere || inside;
  for (int64_t first = t.index() * t.high() + t.row(); works && first < t.rows;
       first += kRowsAtOnce * step) {
    S sums[VEC] = {};
    for (int64_t row = first; row < min(t.rows, first + kRowsAtOnce * step); row += ROWS * step) {
      pointwise::Loaded<T, VEC> in[ROWS][2];
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const int64_t at = row + i * step;
        if (at >= t.rows) break;
        a.template load<ACCESS>(in[i], at, column, left);
      }
      if (begins && a.bias) {  // now, so that memory is waited for once
        begins = false;
        if constexpr (ACCESS == Access::packs) {
          bias = unpack<S>(load<T, VEC>(a.bias + column));
        } else {
          pointwise::Loaded<T, VEC> loaded;
          pointwise::take<T, VEC>(loaded, a.bias + column, 1, left);
          if (inside) bias = unpack<S>(loaded.pack());
        }
      }
#pragma unroll
      for (int i = 0; i < ROWS; ++i) {
        const int64_t at = row + i * step;
        if (at >= t.rows) break;
        auto dx = unpack<S>(in[i][0].pack());
        const auto v = unpack<S>(in[i][1].pack());
#pragma unroll
        for (int k = 0; k < VEC; ++k) {
          dx.v[k] = gradient_of<F>(dx.v[k], v.v[k] + bias.v[k]);
          sums[k] += dx.v[k];
        }
        if (!a.dx) continue;
        if constexpr (ACCESS == Access::anywhere) {
          const int lane = threadIdx.x % kWarp * VEC;
          const int64_t begin = column - lane;
          SkewedRow<T, VEC> to(a.dx + at * t.n + begin);
          const auto end = static_cast<int>(min(t.n - begin, int64_t{kWarp * VEC}));
          to.put(pack<T>(dx), lane, true, end);
        } else {
          store<T, VEC>(a.dx + at * t.n + column, pack<T>(dx));
        }
      }
    }
#pragma unroll
    for (int k = 0; k < VEC; ++k) total[k] += sums[k];
  }
  if (!a.partial && !a.dbias) return;
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
    if (a.dbias) {
      a.dbias[to] = round_to<T, double>(sum);
    } else {
      a.partial[t.index() * t.n + to] = static_cast<S>(sum);
    }
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
  const bool few = t.rows <= 0xffffffff;  // whose division is shorter
  const int64_t which =
      few ? static_cast<uint32_t>(row) % static_cast<uint32_t>(a.biases) : row % a.biases;
  const S bias = a.bias ? to_stat(a.bias[which]) : S(0);
  double total = 0;
  for (int64_t column = part * share + t.lane() * VEC; column < end; column += step) {
    pointwise::Loaded<T, VEC> in[2];
    a.template load<VEC == 1 ? Access::elements : Access::packs>(in, row, column, VEC);
    auto dx = unpack<S>(in[0].pack());
    const auto x = unpack<S>(in[1].pack());
    S sum = 0;
#pragma unroll
    for (int k = 0; k < VEC; ++k) {
      dx.v[k] = gradient_of<F>(dx.v[k], x.v[k] + bias);
      sum += dx.v[k];
    }
    if (a.dx) store<T, VEC>(a.dx + row * t.n + column, pack<T>(dx));
    total += sum;
  }
  if (!a.partial && !a.dbias) return;
  total = lanes_sum(total, t.lanes());
  if (t.lane() != 0 || row >= t.rows) return;
  if (a.dbias) {
    a.dbias[row] = round_to<T, double>(total);
  } else {
    a.partial[part * t.rows + row] = static_cast<S>(total);
  }
}

}  // namespace fuseline::bias_gelu
