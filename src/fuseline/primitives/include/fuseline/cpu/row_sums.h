// Passes over a row on the CPU, sums of its terms and sums over rows, for the instruction set the
// including file is built for. Everything is in an unnamed namespace and uses no template of the
// standard library: what the linker merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/cpu/vectors/lanes.h"

namespace fuseline {
namespace {

// body(i, part) for the vectors of columns [i, last); the row, or block of it, begins at `first`.
template <class C, class Body>
inline void each_vector(int64_t first, int64_t i, int64_t last, const Body& body) {
  constexpr int64_t kN = kLanes<C>;
  for (; i + kN <= last; i += kN) body(i, Whole{});
  if (i == last) return;
  const int rest = static_cast<int>(last - i);
  if (last - first >= kN) return body(last - kN, Overlap{{}, rest});
  body(i, Short{rest});
}

template <class C, class Body>
inline void each_vector(int64_t n, const Body& body) {
  each_vector<C>(0, 0, n, body);
}

// Columns whose terms are summed in C, one after the other in each lane: 16 steps of four vectors.
// Where all terms are alike, all lanes err in the same direction: 64 steps cost up to 9 ULP.
template <class C>
constexpr int64_t kBlock = 16 * 4 * kLanes<C>;

// The sum of term(i, part) over columns [first, last), at most a block; the lanes' sum is fp64.
template <class C, class Term>
__attribute__((always_inline)) inline double sum_block(int64_t first, int64_t last,
                                                       const Term& term) {
  constexpr int64_t kN = kLanes<C>;
  Vector<C> a = {}, b = {}, c = {}, d = {};
  int64_t i = first;
  for (; i + 4 * kN <= last; i += 4 * kN) {
    a += term(i, Whole{});
    b += term(i + kN, Whole{});
    c += term(i + 2 * kN, Whole{});
    d += term(i + 3 * kN, Whole{});
  }
  each_vector<C>(first, i, last, [&](int64_t j, auto part) { a += fresh<C>(term(j, part), part); });
  return sum_lanes<C>((a + b) + (c + d));
}

// The same for any row: blocks are added pairwise in fp64.
template <class C, class Term>
double sum_blocks(int64_t first, int64_t last, const Term& term) {
  if (last - first <= kBlock<C>) return sum_block<C>(first, last, term);
  const int64_t middle = first + ((last - first) / kBlock<C> + 1) / 2 * kBlock<C>;
  return sum_blocks<C>(first, middle, term) + sum_blocks<C>(middle, last, term);
}

// Inlines what a short row needs, for which a call would cost as much as the sum.
template <class C, class Term>
__attribute__((always_inline)) inline double sum_row(int64_t n, const Term& term) {
  return n <= kBlock<C> ? sum_block<C>(0, n, term) : sum_blocks<C>(0, n, term);
}

// K terms at once, or K sums of such.
template <class V, int K>
struct Several {
  V of[K] = {};

  Several operator+(const Several& other) const {
    Several sum;
    for (int k = 0; k < K; ++k) sum.of[k] = of[k] + other.of[k];
    return sum;
  }
};

// The K sums of the K terms that term(i, part) gives, over columns [first, last): blocks of so many
// steps of two vectors in C, added pairwise in fp64.
template <class C, int K, int kSteps, class Term>
Several<double, K> sum_several(int64_t first, int64_t last, const Term& term) {
  constexpr int64_t kN = kLanes<C>, kColumns = kSteps * 2 * kN;
  if (last - first > kColumns) {
    const int64_t middle = first + ((last - first) / kColumns + 1) / 2 * kColumns;
    return sum_several<C, K, kSteps>(first, middle, term) +
           sum_several<C, K, kSteps>(middle, last, term);
  }
  Several<Vector<C>, K> a, b;
  int64_t i = first;
  for (; i + 2 * kN <= last; i += 2 * kN) {
    a = a + term(i, Whole{});
    b = b + term(i + kN, Whole{});
  }
  each_vector<C>(first, i, last, [&](int64_t j, auto part) {
    auto terms = term(j, part);
    for (auto& t : terms.of) t = fresh<C>(t, part);
    a = a + terms;
  });
  Several<double, K> sums;
  for (int k = 0; k < K; ++k) sums.of[k] = sum_lanes<C>(a.of[k] + b.of[k]);
  return sums;
}

// A sum in fp64 and what its additions lost, for terms that may cancel.
struct Compensated {
  Vector<double> sum = {}, lost = {};

  void add(const Vector<double>& v) {
    const auto next = sum + v, moved = next - sum;
    lost += (sum - (next - moved)) + (v - moved);
    sum = next;
  }
  long double total() const {
    double high = sum[0], low = 0;
    for (int i = 1; i < kLanes<double>; ++i) {
      const double next = high + sum[i], moved = next - high;
      low += (high - (next - moved)) + (sum[i] - moved);
      high = next;
    }
    return static_cast<long double>(high) + (low + sum_halves<kLanes<double>>(lost));
  }
};

// The sum of term(i, part), in fp64, over a row.
template <class Term>
long double sum_compensated(int64_t n, const Term& term) {
  Compensated sum;
  each_vector<double>(n,
                      [&](int64_t i, auto part) { sum.add(fresh<double>(term(i, part), part)); });
  return sum.total();
}

// Asks for what a pass over rows comes to soon. Two pages: the processor's own prefetchers stop at
// the end of one.
template <class X>
inline void prefetch_ahead(const X* p) {
  __builtin_prefetch(p + 8192 / sizeof(X));
}

// The sum of a row that is passed over for something else too: in fp64, of fp64 with what its
// additions lose.
template <class C>
struct RowSum {
  Vector<double> parts[kParts<C>] = {};

  void add(const Vector<C>& v) {
    for (int part = 0; part < kParts<C>; ++part) parts[part] += widen<C>(v, part);
  }
  double total() const { return sum_halves<kLanes<double>>(parts[0] + parts[1]); }
  // The sum of each lane, of which every vector had an element of another column.
  void totals(double* to) const {
    for (int part = 0; part < kParts<C>; ++part) {
      store<double>(to + part * kLanes<double>, parts[part], Whole{});
    }
  }
};
template <>
struct RowSum<double> {
  Compensated sum;

  void add(const Vector<double>& v) { sum.add(v); }
  double total() const {
    const double plain = sum_halves<kLanes<double>>(sum.sum);
    return plain - plain == 0 ? static_cast<double>(sum.total()) : plain;  // Inf loses NaN
  }
  void totals(double* to) const {
    const auto& all = sum.sum;
    store<double>(to, all - all == 0 ? all + sum.lost : all, Whole{});
  }
};

// out = the total over chunks of rows, each of which has n sums. Owns columns [first, last). Reads
// and overwrites sums, pairwise so that the error grows with the logarithm of the chunks. Writes
// out.
template <class Out>
void sum_chunks(double* sums, int64_t chunks, int64_t n, int64_t first, int64_t last, void* out) {
  const int64_t columns = last - first;
  for (int64_t step = 1; step < chunks; step *= 2) {
    for (int64_t c = 0; c + step < chunks; c += 2 * step) {
      double* a = sums + c * n + first;
      const double* b = a + step * n;
      for (int64_t i = 0; i < columns; ++i) a[i] += b[i];
    }
  }
  each_vector<double>(columns, [=](int64_t i, auto part) {
    store<double>(static_cast<Out*>(out) + first + i, load<double>(sums + first + i, part), part);
  });
}

}  // namespace
}  // namespace fuseline
