// The cross-entropy of rows of logits and its gradient: a warp or a block takes a row, which is
// read once, wherever it begins. The order of sums depends on the number of classes alone.
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/rows/row_again.cuh"
#include "fuseline/cuda/rows/softmax_cuda.cuh"

namespace fuseline::cross_entropy {

using rows::ArgsOf;
using rows::Packs;

// The classes of the rows, and what the loss is made of.
template <typename S>
struct Problem {
  const int64_t* target;
  const S* weight;  // none: 1 each
  int64_t ignore_index;
  S smoothing, z_loss, softcap, inverse;  // softcap 0: none; its inverse
  S* stats;  // (rows, 2): the largest logit, log(sum of exponentials relative to it)

  __device__ __forceinline__ S weight_of(int64_t c) const { return weight ? weight[c] : S(1); }
  // The share of the softcap that a logit becomes, and what it becomes.
  __device__ __forceinline__ S share(S x) const { return tanh(x * inverse); }
  __device__ __forceinline__ S capped(S x) const { return softcap > 0 ? softcap * share(x) : x; }
};

// The traits that WarpColumns asks of an operator on rows of logits.
template <typename T_, int OUTPUTS_>
struct OfLogits : rows::DefaultTraits {
  using T = T_;
  using S = Stat<T>;
  static constexpr int INPUTS = 1, OUTPUTS = OUTPUTS_;
  static __device__ S nothing() { return -softmax::kInfinity<S>; }
};

// Of some logits: the largest, the sum of exponentials relative to it; for smoothed labels the sum
// of w * (z - largest), and of the weights w.
template <typename T>
struct alignas(8) Sums {
  static constexpr bool QUICK = false;
  using Exponentials = softmax::MaxSum<T, false>;
  Exponentials of;
  double below, weights;

  static __device__ Sums none() { return {Exponentials::none(), 0, 0}; }
  // `below`, relative to `max`.
  __device__ __forceinline__ double below_at(Stat<T> max) const {
    return below + weights * (static_cast<double>(softmax::shift(of.max)) - softmax::shift(max));
  }
};

template <typename T>
__device__ __forceinline__ Sums<T> plus(const Sums<T>& a, const Sums<T>& b) {
  const auto of = softmax::plus(a.of, b.of);
  return {of, a.below_at(of.max) + b.below_at(of.max), a.weights + b.weights};
}

template <typename T>
__device__ __forceinline__ Sums<T> over_lanes(const Sums<T>& p, int width, int step = 1) {
  const auto of = softmax::over_lanes(p.of, width, step);
  return {of, lanes_sum(p.below_at(of.max), width, step), lanes_sum(p.weights, width, step)};
}

template <typename T_>
struct Forward : OfLogits<T_, 0> {
  using typename OfLogits<T_, 0>::T, typename OfLogits<T_, 0>::S;
  struct Row {};
  Problem<S> problem;
  S* losses;

  __device__ __forceinline__ bool skips(int64_t index) const {
    if (problem.target[index] != problem.ignore_index) return false;
    if (threadIdx.x == 0) {
      losses[index] = 0;
      problem.stats[2 * index] = problem.stats[2 * index + 1] = 0;
    }
    return true;
  }

  // Of packs whose columns count from `first`.
  template <int VEC, int ITEMS, typename Span>
  __device__ __forceinline__ Sums<T> sums(Packs<Forward, VEC> (&held)[ITEMS], const Span& at,
                                          int64_t first) const {
    if (problem.softcap > 0) {
      each(held, at, [&](S& x, int) { x = problem.capped(x); });
    }
    S max = this->nothing();
    each(held, at, [&](S& x, int) { max = fmax(max, x); });
    const S shift = softmax::shift(max);
    S sum = 0, below = 0, weights = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (const S x : held[i].v[0].v) sum += softmax::exp_term<T>(x - shift);
    }
    if (problem.smoothing > 0) {
      each(held, at, [&](S& x, int column) {
        const S weight = problem.weight_of(first + column);
        below += weight * (x - shift);
        weights += weight;
      });
    }
    return {{max, sum}, below, weights};
  }

  __device__ __forceinline__ void finish(const ArgsOf<Forward>& a, int64_t index,
                                         const Sums<T>& all) const {
    const int64_t target = problem.target[index];
    const S log_sum = log(static_cast<S>(all.of.sum)), lse = all.of.max + log_sum;
    S loss = static_cast<S>(__builtin_nanf(""));  // of what is no class
    if (0 <= target && target < a.n) {
      const S z = problem.capped(to_stat(a.at(0, index, target)));
      loss = (1 - problem.smoothing) * problem.weight_of(target) * ((all.of.max - z) + log_sum);
      if (problem.smoothing > 0) {
        const double each = problem.smoothing / static_cast<double>(a.n);
        loss += static_cast<S>(each * (all.weights * log_sum - all.below));
      }
      if (problem.z_loss > 0) loss += problem.z_loss * lse * lse;
    }
    losses[index] = loss;
    problem.stats[2 * index] = all.of.max;
    problem.stats[2 * index + 1] = log_sum;
  }

 private:
  template <int VEC, int ITEMS, typename Span, typename F>
  static __device__ __forceinline__ void each(Packs<Forward, VEC> (&held)[ITEMS], const Span& at,
                                              const F& f) {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if (at(i, v)) f(held[i].v[0].v[v], at.column(i, v));
      }
    }
  }
};

// dz = own * (e - hit) + each * (e * weights - weight) + of_z * e, where e is
// exp(z - max - log_sum), and hit 1 at the target: so what cancels where e is 1 leaves nothing. 0
// in a row that is ignored.
template <typename T_>
struct Backward : OfLogits<T_, 1> {
  using typename OfLogits<T_, 1>::T, typename OfLogits<T_, 1>::S;
  struct Row {
    S max, log_sum, own, each, weights, of_z;
    int64_t target, n;
    bool kept;
  };
  Problem<S> problem;
  const S* dloss;
  int64_t step;         // between the rows' dloss
  const double* total;  // the sum of the targets' weights, and of all
  bool mean;
  int64_t apart;  // elements between rows of dlogits

  __device__ __forceinline__ Row begin(const ArgsOf<Backward>& a, int64_t index) const {
    const int64_t target = problem.target[index];
    const bool known = 0 <= target && target < a.n;
    const double upstream = dloss[index * step] / (mean ? total[0] : 1.0);
    Row row{problem.stats[2 * index], problem.stats[2 * index + 1]};
    row.target = target;
    row.n = a.n;
    row.kept = target != problem.ignore_index;
    const double lse = static_cast<double>(row.max) + row.log_sum;
    const double weight = known ? problem.weight_of(target) : __builtin_nan("");
    const double own = upstream * (1.0 - problem.smoothing) * weight;
    row.own = static_cast<S>(own);
    row.each = static_cast<S>(upstream * problem.smoothing / static_cast<double>(a.n));
    row.weights = static_cast<S>(total[1]);
    row.of_z = static_cast<S>(2 * upstream * problem.z_loss * lse);
    return row;
  }

  // The columns of a pack.
  struct Columns {
    int64_t first;
    int pair, next;
  };
  template <int VEC, bool EARLY>
  __device__ __forceinline__ Columns operands(bool, int64_t column) const {
    return {column, 2, 1};
  }
  template <int VEC, bool, typename Span>
  __device__ __forceinline__ Columns some_operands(const Span& at, int i, int64_t first) const {
    return {first + at.column(i), at.pair, at.next};
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row, const Packs<Backward, VEC>& pack,
                                                const Columns& columns) const {
    const int hit = static_cast<int>(row.target - columns.first);
    const int left = static_cast<int>(row.n - columns.first);
    Values<S, VEC> dx;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const int behind = v / 2 * columns.pair + v % 2 * columns.next;
      S z = pack.v[0].v[v], share = 0;
      if (problem.softcap > 0) share = problem.share(z), z = problem.softcap * share;
      const S e = softmax::exp_of<T>((z - row.max) - row.log_sum);
      S dz = fma(behind == hit ? e - 1 : e, row.own, e * row.of_z);
      if (problem.smoothing > 0 && behind < left) {
        const S weight = problem.weight_of(columns.first + behind);
        dz = fma(fma(e, row.weights, -weight), row.each, dz);
      }
      dx.v[v] = row.kept ? dz * (1 - share) * (1 + share) : S(0);
    }
    return dx;
  }
};

constexpr int kAtOnce = 4;        // packs of a thread in flight
constexpr int kRowThreads = 256;  // of a long row

template <typename Op, int THREADS, bool WHOLE>
using Columns = rows::WarpColumns<Op, kVec<typename Op::T>, WHOLE, kAtOnce>;

template <typename Op, int THREADS, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
    loss_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op) {
  const int64_t index = blockIdx.x;
  if (op.skips(index)) return;
  const Columns<Op, THREADS, WHOLE> columns(a, index, a.n, THREADS);
  auto part = Sums<typename Op::T>::none();
  for (int time = 0; time < columns.times; ++time) {
    typename Columns<Op, THREADS, WHOLE>::Held held;
    const auto at = columns.span(time);
    columns.load(op, {}, at, held);
    part = plus(part, op.sums(held, at, columns.first));
  }
  const auto all = rows::row_part<(THREADS > kWarp), THREADS, 0>(part, THREADS);
  if (threadIdx.x == 0) op.finish(a, index, all);
}

template <typename Op, int THREADS, bool WHOLE>
__global__ void __launch_bounds__(THREADS)
    slope_kernel(const __grid_constant__ ArgsOf<Op> a, const __grid_constant__ Op op) {
  const int64_t index = blockIdx.x;
  Columns<Op, THREADS, WHOLE> columns(a, index, a.n, THREADS);
  columns.write(op, op.begin(a, index), a.out.at(index * op.apart + columns.begin));
}

// Calls launch(threads, whole): as many threads as a row keeps busy; whether all rows begin at
// multiples of 16 bytes and consist of whole packs.
template <typename Op, typename Launch>
void by_length(const ArgsOf<Op>& a, const Op& op, const Launch& launch) {
  constexpr int VEC = kVec<typename Op::T>;
  bool whole = a.n % VEC == 0 && aligned<typename Op::T, VEC>(a.in[0], a.stride[0]);
  if constexpr (Op::OUTPUTS > 0) {
    whole = whole && aligned<typename Op::T, VEC>(a.out.of[0], op.apart);
  }
  const auto by = [&](auto threads) {
    whole ? launch(threads, std::true_type{}) : launch(threads, std::false_type{});
  };
  if (a.n <= kWarp * VEC * kAtOnce) return by(std::integral_constant<int, kWarp>{});
  by(std::integral_constant<int, kRowThreads>{});
}

template <typename T>
cudaError_t launch(const ArgsOf<Forward<T>>& a, const Forward<T>& op, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  by_length(a, op, [&](auto threads, auto whole) {
    constexpr int THREADS = decltype(threads)::value;
    const auto kernel = loss_kernel<Forward<T>, THREADS, decltype(whole)::value>;
    kernel<<<static_cast<unsigned>(a.rows), THREADS, 0, stream>>>(a, op);
  });
  return cudaGetLastError();
}

template <typename T>
cudaError_t launch(const ArgsOf<Backward<T>>& a, const Backward<T>& op, cudaStream_t stream) {
  if (a.rows == 0) return cudaSuccess;
  by_length(a, op, [&](auto threads, auto whole) {
    constexpr int THREADS = decltype(threads)::value;
    const auto kernel = slope_kernel<Backward<T>, THREADS, decltype(whole)::value>;
    kernel<<<static_cast<unsigned>(a.rows), THREADS, 0, stream>>>(a, op);
  });
  return cudaGetLastError();
}

}  // namespace fuseline::cross_entropy
