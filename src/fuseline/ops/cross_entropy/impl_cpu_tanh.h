// tanh on the vectors of lanes.h, for the instruction set the including file is built for.
#pragma once

#include "fuseline/cpu/vectors/vector_math.h"

namespace fuseline::cross_entropy {
namespace {

// tanh(x) within 2 ULP. Near 0 Cephes' polynomials (Moshier, https://www.netlib.org/cephes), else
// 1 - 2 / (e^2|x| + 1).
template <class C>
inline Vector<C> vtanh(const Vector<C>& x) {
  const Vector<C> size = x < 0 ? -x : x, square = x * x;
  Vector<C> near;
  if constexpr (sizeof(C) == 8) {
    const auto above = polynomial<C>(square, -1.61468768441708447952e3, -9.92877231001918586564e1,
                                     -9.64399179425052238628e-1);
    const auto below = polynomial<C>(square, 4.84406305325125486048e3, 2.23548839060100448583e3,
                                     1.12811678491632931402e2, 1.0);
    near = x + x * square * (above / below);
  } else {
    near = x + x * square *
                   polynomial<C>(square, -3.33332819422e-1f, 1.33314422036e-1f, -5.37397155531e-2f,
                                 2.06390887954e-2f, -5.70498872745e-3f);
  }
  const Vector<C> far = 1 - 2 / (vexp<C>(2 * size) + 1);
  return size < C(0.625) ? near : (x < 0 ? -far : far);
}

}  // namespace
}  // namespace fuseline::cross_entropy
