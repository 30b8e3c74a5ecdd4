// The softmax of scaled and masked rows, its logarithm, and their gradients, for the kernels of
// row_cuda.cuh.
#pragma once

#include "fuseline/cuda/rows/row_parameter.cuh"
#include "fuseline/cuda/rows/softmax_cuda.cuh"

namespace fuseline::masked_softmax {

using rows::ArgsOf;
using rows::Packs;

// Division of numbers below 2^63 by one that is known when a kernel is launched.
struct Divisor {
  uint64_t number, inverse;

  Divisor() : Divisor(1) {}
  explicit Divisor(int64_t by) : number(by), inverse(~uint64_t{0} / number) {}
  // Leaves the quotient in `of`, returns the rest.
  __device__ __forceinline__ int64_t take(int64_t& of) const {
    uint64_t quotient = __umul64hi(of, inverse);  // or one less
    uint64_t rest = of - quotient * number;
    if (rest >= number) ++quotient, rest -= number;
    of = quotient;
    return rest;
  }
};

// What causal leaves of rows of n: of row i of each matrix of `queries` the columns up to
// i + n - queries. All, without such a number.
struct Causal {
  int64_t queries = 0;
  Divisor divisor;

  Causal() = default;
  explicit Causal(int64_t queries) : queries(queries), divisor(queries ? queries : 1) {}
  __device__ __forceinline__ int64_t visible(int64_t row, int64_t n) const {
    if (!queries) return n;
    return max(int64_t{0}, divisor.take(row) + 1 + n - queries);
  }
};

// Where the rows of a mask lie: by their dimensions from the innermost on, as one where one goes on
// as the other ends, without those outside that are broadcast.
struct MaskRows {
  static constexpr int kMost = 4;
  const void* data = nullptr;  // none
  bool is_float = false;       // whether elements are fp32 beside those of a half type
  int dims = 0;
  Divisor sizes[kMost];
  int64_t steps[kMost] = {};
  int64_t last = 0;  // between columns

  // Of the leading dimensions of rows. False if they are too many.
  bool place(const int64_t* all_sizes, const int64_t* strides, int64_t count) {
    int64_t rows = 1;  // of the dimension that is gathered now
    for (int64_t d = count - 1; d >= 0; --d) {
      const int64_t size = all_sizes[d], step = strides[d];
      if (size == 1) continue;
      const bool goes_on = dims > 0 && step == steps[dims - 1] * rows;
      if (!goes_on && dims == kMost) return false;
      if (!goes_on) rows = 1, steps[dims++] = step;
      sizes[dims - 1] = Divisor(rows *= size);
    }
    if (dims > 0 && steps[dims - 1] == 0) --dims;
    return true;
  }
  // Whether rows consist of whole packs, of elements of so many bytes.
  bool wide(int64_t bytes) const {
    bool all = last == 1 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (int d = 0; d < dims; ++d) all = all && steps[d] * bytes % 16 == 0;
    return all;
  }
  __device__ __forceinline__ int64_t row(int64_t index) const {
    int64_t at = 0;
#pragma unroll 1
    for (int d = 0; d < dims; ++d) at += sizes[d].take(index) * steps[d];
    return at;
  }
};

// y = exp(z - max) / sum, or z - max - log(sum), of z = scale * x + mask.
template <typename T_, bool HELD = true>
struct Forward : softmax::OfX<T_, HELD> {
  using Base = softmax::OfX<T_, HELD>;
  using typename Base::Total, typename Base::S, typename Base::T;
  using Again = Forward<T, false>;
  using Plain = softmax::Softmax<T, HELD>;
  using Log = softmax::LogSoftmax<T, HELD>;
  static constexpr int ROUNDS = 1;
  static constexpr bool PREPARES = true, FEW_KERNELS = true;
  struct Row {
    int64_t visible, mask;     // columns; where the mask's row begins
    typename Plain::Row sums;  // or max and log(sum)
  };
  MaskRows mask;
  Causal causal;
  S scale;
  bool log;

  bool aligned() const {
    return !mask.data || mask.wide(mask.is_float ? sizeof(float) : sizeof(T));
  }
  Again again() const { return {{}, mask, causal, scale, log}; }
  __device__ __forceinline__ Row begin(const ArgsOf<Forward>& a, int64_t index) const {
    return {causal.visible(index, a.n), mask.row(index), {}};
  }

  template <typename F>
  __device__ __forceinline__ void each_parameter(const Row& row, const F& f) const {
    if (!mask.data || mask.last != 1) return;
    if (mask.is_float) return f(static_cast<const float*>(mask.data) + row.mask);
    f(static_cast<const T*>(mask.data) + row.mask);
  }

  // How many columns of a span causal leaves.
  template <typename Span>
  static __device__ __forceinline__ int left(const Row& row, const Span& at, int64_t first) {
    return static_cast<int>(
        max(int64_t{0}, min(static_cast<int64_t>(at.count), row.visible - first - at.first)));
  }
  template <typename Span>
  __device__ __forceinline__ Span seen(const Row& row, Span at, int64_t first) const {
    at.count = min(at.count, (left(row, at, first) + 1) / 2 * 2);  // whole pairs
    return at;
  }
  template <int VEC, bool WHOLE, int ITEMS>
  __device__ __forceinline__ void prepare(const Row& row, Packs<Forward, VEC> (&held)[ITEMS],
                                          const rows::Span<VEC, WHOLE>& at, int64_t first) const {
    const rows::Span<VEC, false> seen{at.first, left(row, at, first), at.step, at.pair, at.next};
    const auto masked = [&](const auto* rows) {
      const auto* const from = rows + row.mask + first * mask.last;
      make(held, seen, [&](int i) { return addends<WHOLE>(from, seen, i); });
    };
    if (!mask.data) return make(held, seen, [](int) { return Values<S, VEC>{}; });
    if constexpr (sizeof(T) < sizeof(float)) {
      if (mask.is_float) return masked(static_cast<const float*>(mask.data));
    }
    masked(static_cast<const T*>(mask.data));
  }
  template <int VEC, int ITEMS, typename Addends>
  __device__ __forceinline__ void make(Packs<Forward, VEC> (&held)[ITEMS],
                                       const rows::Span<VEC, false>& seen,
                                       const Addends& addends) const {
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      const Values<S, VEC> m = addends(i);
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        S& x = held[i].v[0].v[v];
        x = seen(i, v) ? fma(x, scale, m.v[v]) : Base::nothing();
      }
    }
  }
  // What is seen of a pack of the mask.
  template <bool WHOLE, typename M, int VEC>
  __device__ __forceinline__ Values<S, VEC> addends(const M* from,
                                                    const rows::Span<VEC, false>& seen,
                                                    int i) const {
    if constexpr (WHOLE && VEC > 1) {
      rows::Parameter<T, M, VEC, true> pack;
      pack.template load<true>(seen(i), from, seen.column(i), rows::kNone[0]);
      return pack.values();
    } else {
      Values<S, VEC> m{};
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        if (seen(i, v)) m.v[v] = static_cast<S>(to_stat(from[seen.column(i, v) * mask.last]));
      }
      return m;
    }
  }

  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row& row, Packs<Forward, VEC> (&held)[ITEMS],
                                       const There&) const {
    const Total part = Base::max_and_sum(held, Plain::KEPT && !log);
    row.sums.max = part.max;
    return part;
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t n) const {
    if (log) {
      typename Log::Row sums;
      Log{}.template end<ROUND>(sums, all, n);
      row.sums = {sums.max, sums.log_sum, 0};
    } else {
      Plain{}.template end<ROUND>(row.sums, all, n);
    }
  }
  template <int VEC>
  __device__ __forceinline__ Values<S, VEC> out(const Row& row, const Packs<Forward, VEC>& pack,
                                                rows::NoOperands none) const {
    if (log) return Log{}.out({row.sums.max, row.sums.scale}, pack, none);
    return Plain{}.out(row.sums, pack, none);
  }
  __device__ void finish(const Row&, int64_t) const {}
};

// dx of (dy, y), 0 where causal hides x.
template <typename T_, bool HELD = true>
struct Backward : softmax::OfTwo<T_, HELD> {
  using Base = softmax::OfTwo<T_, HELD>;
  using typename Base::Total, typename Base::S, typename Base::T;
  using Again = Backward<T, false>;
  using Plain = softmax::OfSoftmax<T>;
  using Log = softmax::OfLogSoftmax<T>;
  static constexpr int ROUNDS = 1;
  static constexpr bool FEW_KERNELS = true;
  struct Row {
    int64_t visible;
    S sum;
  };
  Causal causal;
  S scale;
  bool log;

  Again again() const { return {{}, causal, scale, log}; }
  __device__ __forceinline__ Row begin(const ArgsOf<Backward>& a, int64_t index) const {
    return {causal.visible(index, a.n), 0};
  }
  template <int ROUND, int VEC, int ITEMS, typename There>
  __device__ __forceinline__ Total sum(Row&, Packs<Backward, VEC> (&held)[ITEMS],
                                       const There&) const {
    S sum = 0;
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
#pragma unroll
      for (int v = 0; v < VEC; ++v) {
        const S dy = held[i].v[0].v[v], y = held[i].v[1].v[v];
        sum += log ? Log::term(dy, y) : Plain::term(dy, y);
      }
    }
    return {sum};
  }
  template <int ROUND>
  __device__ __forceinline__ void end(Row& row, const Total& all, int64_t) const {
    row.sum = static_cast<S>(all.value);
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
    Values<S, VEC> dx;
#pragma unroll
    for (int v = 0; v < VEC; ++v) {
      const S dy = pack.v[0].v[v], y = pack.v[1].v[v];
      const S dz = log ? Log::dx(dy, y, row.sum) : Plain::dx(dy, y, row.sum);
      const int behind = v / 2 * columns.pair + v % 2 * columns.next;
      dx.v[v] = columns.first + behind < row.visible ? scale * dz : S(0);
    }
    return dx;
  }
  __device__ void finish(const Row&, int64_t) const {}
};

}  // namespace fuseline::masked_softmax
