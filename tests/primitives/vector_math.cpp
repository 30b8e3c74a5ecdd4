// The functions of vector_math.h over arrays, for test_vector_math.py.
#include "fuseline/cpu/vectors/vector_math.h"

#include "fuseline/cpu/row_sums.h"

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
