// Rows of few elements by tiles of them in which a column is side by side, so that vectors have an
// element of as many rows: a row alone leaves lanes empty and waits for its sums. Whether a row is
// taken so may depend on its length alone, and so does then its result. Everything is in an unnamed
// namespace and uses no template of the standard library: what the linker merges could carry wider
// instructions than the processor has.
#pragma once

#include "fuseline/cpu/row_sums.h"
#include "fuseline/cpu/vectors/transpose.h"

namespace fuseline {
namespace {

constexpr int64_t kTileRows = 64;

// So many rows, of at most COLUMNS elements. Those that are not there have 0 where a vector reaches
// them, else anything: of what lies in memory denormal numbers would take a vector long.
template <class X, int64_t COLUMNS>
struct RowTile {
  X elements[COLUMNS * kTileRows];

  X* column(int64_t i) { return elements + i * kTileRows; }
  const X* column(int64_t i) const { return elements + i * kTileRows; }

  // Those from `first` on, of n elements.
  const X* of(const void* rows, int64_t first, int64_t stride, int64_t count, int64_t n) {
    transpose(static_cast<const X*>(rows) + first * stride, stride, elements, kTileRows, count, n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t r = count; r % kLanes<Compute<X>>; ++r) column(i)[r] = X{};
    }
    return elements;
  }
  // `step`: from a column to the next.
  void write(void* rows, int64_t first, int64_t count, int64_t n, int64_t step = kTileRows) const {
    transpose(elements, step, static_cast<X*>(rows) + first * n, n, n, count);
  }
};

// body(first row, count) for each tile of rows.
template <class Body>
inline void each_tile(int64_t first, int64_t last, const Body& body) {
  for (int64_t row = first; row < last; row += kTileRows) {
    body(row, last - row < kTileRows ? last - row : kTileRows);
  }
}

// body(first row, count, at) for vectors of rows of n elements, n <= COLUMNS; at(i) has their
// elements of column i.
template <class X, int64_t COLUMNS, class Body>
inline void each_vector_of_rows(const void* rows, int64_t stride, int64_t n, int64_t first,
                                int64_t last, const Body& body) {
  using C = Compute<X>;
  RowTile<X, COLUMNS> tile;
  each_tile(first, last, [&](int64_t row, int64_t count) {
    const X* const x = tile.of(rows, row, stride, count, n);
    for (int64_t r = 0; r < count; r += kLanes<C>) {
      const int64_t here = count - r < kLanes<C> ? count - r : kLanes<C>;
      body(row + r, here, [=](int64_t i) { return load<C>(x + i * kTileRows + r, Whole{}); });
    }
  });
}

// Writes the sums of the first `count` lanes.
template <class C, class X>
inline void store_totals(const RowSum<C>& sum, X* to, int64_t count) {
  double totals[kLanes<C>];
  sum.totals(totals);
  each_vector<double>(count, [=, &totals](int64_t i, auto part) {
    store<double>(to + i, load<double>(totals + i, part), part);
  });
}

// The most columns that norms take as tiles, whose rows alone have long scalar parts (AVX-512, one
// thread, 2048 x 16 fp32, calls: layer_norm 49 by rows, 26 us by tiles, norm_chain 26 and 16).
constexpr int64_t kFewOfNorms = 16;

}  // namespace
}  // namespace fuseline
