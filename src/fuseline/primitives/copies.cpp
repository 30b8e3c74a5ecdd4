// Copies on the CPU, in runs of one of the two orders or, where their fastest dimensions differ, in
// transposed planes: torch takes most of these element by element.
#include "fuseline/core/cpp/copies.h"

#include <algorithm>

#include "fuseline/cpu/rows_cpu.h"
#include "fuseline/cpu/vectors/transpose.h"

namespace fuseline {
namespace {

struct Dim {
  int64_t size, to, from;
};

// The dimensions in the order in which `to` has them, the fastest last, as few as say it.
std::vector<Dim> dims_of(const Tensor& to, const Tensor& from) {
  std::vector<Dim> dims;
  for (int64_t d = 0; d < to.dim(); ++d) {
    if (to.sizes()[d] != 1) dims.push_back({to.sizes()[d], to.strides()[d], from.strides()[d]});
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [](const Dim& a, const Dim& b) { return a.to > b.to; });
  std::vector<Dim> joined;
  for (const Dim& d : dims) {
    if (!joined.empty()) {
      Dim& last = joined.back();
      if (last.to == d.size * d.to && last.from == d.size * d.from) {
        last = {last.size * d.size, d.to, d.from};
        continue;
      }
    }
    joined.push_back(d);
  }
  return joined;
}

// What is copied at once: `size` elements of the fastest dimension of `to`, `step` apart in `from`,
// or, with `rows`, a plane in which a second dimension is the fastest of `from`.
struct Plane {
  Dim run, rows;
};

template <class T>
void copy_run(T* to, const T* from, int64_t size, int64_t step) {
  if (step == 1) {
    std::memcpy(to, from, size * sizeof(T));
  } else {
    for (int64_t i = 0; i < size; ++i) to[i] = from[i * step];
  }
}

// Rows [first, last) of a plane.
template <class T>
void copy_rows(const Plane& p, T* to, const T* from, int64_t first, int64_t last) {
  to += first * p.rows.to;
  from += first * p.rows.from;
  if (p.rows.from == 1 && p.run.from != 1) {
    return transpose<T>(from, p.run.from, to, p.rows.to, p.run.size, last - first);
  }
  for (int64_t row = first; row < last; ++row, to += p.rows.to, from += p.rows.from) {
    copy_run(to, from, p.run.size, p.run.from);
  }
}

template <class T>
void copy(const Plane& p, const std::vector<Dim>& outer, T* to, const T* from) {
  int64_t planes = 1;
  for (const Dim& d : outer) planes *= d.size;
  // Parts of a plane, which are whole lines of both sides.
  constexpr int64_t kRows = 64;
  const int64_t parts = (p.rows.size + kRows - 1) / kRows;
  parallel(planes * parts, std::min(kRows, p.rows.size) * p.run.size,
           [&](int64_t first, int64_t last) {
             while (first < last) {
               int64_t plane = first / parts, to_at = 0, from_at = 0;
               const int64_t part = first % parts, end = std::min(parts, part + last - first);
               for (size_t d = outer.size(); d-- > 0; plane /= outer[d].size) {
                 to_at += plane % outer[d].size * outer[d].to;
                 from_at += plane % outer[d].size * outer[d].from;
               }
               copy_rows(p, to + to_at, from + from_at, part * kRows,
                         std::min(end * kRows, p.rows.size));
               first += end - part;
             }
           });
}

}  // namespace

bool copied_on_cpu(Tensor& to, const Tensor& from) {
  std::vector<Dim> dims = dims_of(to, from);
  if (to.numel() == 0 || dims.empty() || dims.back().to != 1) return false;
  Plane plane{dims.back(), {1, 0, 0}};
  dims.pop_back();
  // The second dimension is the fastest of `from` or, where the first is that, the next of `to`.
  auto rows = std::find_if(dims.begin(), dims.end(), [](const Dim& d) { return d.from == 1; });
  if (rows == dims.end() && !dims.empty()) --rows;
  if (rows != dims.end()) {
    plane.rows = *rows;
    dims.erase(rows);
  }
  void* const target = to.mutable_data_ptr();
  const void* const source = from.const_data_ptr();
  switch (to.element_size()) {
    case 2:
      copy(plane, dims, static_cast<uint16_t*>(target), static_cast<const uint16_t*>(source));
      return true;
    case 4:
      copy(plane, dims, static_cast<uint32_t*>(target), static_cast<const uint32_t*>(source));
      return true;
    case 8:
      copy(plane, dims, static_cast<uint64_t*>(target), static_cast<const uint64_t*>(source));
      return true;
    default:
      return false;
  }
}

}  // namespace fuseline
