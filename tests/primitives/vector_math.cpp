// The functions of vector_math.h over arrays, and a tile of row_tiles.h, for test_vector_math.py.
#include "fuseline/cpu/vectors/vector_math.h"

#include "fuseline/cpu/row_sums.h"
#include "fuseline/cpu/row_tiles.h"

namespace {

template <class C, class F>
void each(const C* x, C* y, int64_t n, const F& f) {
  fuseline::each_vector<C>(n, [&](int64_t i, auto part) {
    fuseline::store<C>(y + i, f(fuseline::load<C>(x + i, part)), part);
  });
}

}  // namespace

#define EXPORT(name)                                                           \
  extern "C" void name##_float(const float* x, float* y, int64_t n) {          \
    each(x, y, n, [](const auto& v) { return fuseline::v##name<float>(v); });  \
  }                                                                            \
  extern "C" void name##_double(const double* x, double* y, int64_t n) {       \
    each(x, y, n, [](const auto& v) { return fuseline::v##name<double>(v); }); \
  }

EXPORT(exp)
EXPORT(sin)
EXPORT(cos)

extern "C" void log_double(const double* x, double* y, int64_t n) {
  each(x, y, n, [](const auto& v) { return fuseline::vlog(v); });
}

// A tile of rows of n elements in memory that held denormal numbers; returns the lanes of a vector.
extern "C" int64_t tile_of(const float* rows, int64_t count, int64_t n, float* elements) {
  auto* const tile = reinterpret_cast<fuseline::RowTile<float, 16>*>(elements);
  for (float& element : tile->elements) element = 1e-40f;
  tile->of(rows, 0, n, count, n);
  return fuseline::kLanes<float>;
}
