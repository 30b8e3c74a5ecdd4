// RMSNorm on the CPU, one loop a direction. C is what the sums are in: float, or double for double.
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

namespace rmsnorm {

template <class T, class C>
void forward_rows(const T* x, const T* w, T* y, C* rstd, int64_t rows, int64_t n, C eps) {
  for (int64_t row = 0; row < rows; ++row, x += n, y += n) {
    C sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += static_cast<C>(x[j]) * static_cast<C>(x[j]);
    const C r = rstd[row] = 1 / std::sqrt(sum / n + eps);
    for (int64_t j = 0; j < n; ++j)
      y[j] = static_cast<T>(static_cast<C>(x[j]) * r * static_cast<C>(w[j]));
  }
}

// g = dy w, xhat = x rstd: dx = rstd (g - xhat mean(g xhat)), dw = sum over rows of dy xhat.
template <class T, class C>
void backward_rows(const T* dy, const T* x, const T* w, const C* rstd, T* dx, T* dw, int64_t rows,
                   int64_t n) {
  std::vector<C> sums(n, C{0});
  for (int64_t row = 0; row < rows; ++row, x += n, dy += n, dx += n) {
    const C r = rstd[row];
    C dot = 0;
    for (int64_t j = 0; j < n; ++j) {
      const C d = static_cast<C>(dy[j]), xhat = static_cast<C>(x[j]) * r;
      sums[j] += d * xhat;
      dot += d * static_cast<C>(w[j]) * xhat;
    }
    for (int64_t j = 0; j < n; ++j) {
      const C g = static_cast<C>(dy[j]) * static_cast<C>(w[j]), xhat = static_cast<C>(x[j]) * r;
      dx[j] = static_cast<T>(r * (g - xhat * dot / n));
    }
  }
  for (int64_t j = 0; j < n; ++j) dw[j] = static_cast<T>(sums[j]);
}

}  // namespace rmsnorm
