// Passes over a row on the CPU, and sums of its terms, for the instruction set the including file
// is built for. Everything is in an unnamed namespace and uses no template of the standard library:
// what the linker merges could carry wider instructions than the processor has.
#pragma once

#include "fuseline/lanes.h"

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
inline double sum_row(int64_t n, const Term& term) {
  return n <= kBlock<C> ? sum_block<C>(0, n, term) : sum_blocks<C>(0, n, term);
}

}  // namespace
}  // namespace fuseline
