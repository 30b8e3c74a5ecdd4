// The kernels of the pointwise chain: a block owns neighbouring elements, each thread some packs.
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/trig.cuh"

namespace fuseline::pointwise_chain {

constexpr int kThreads = 128;

// max(x * cos(x), cos(x)) + x * cos(x)
template <typename T, typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> chain(const Values<S, VEC>& x) {
  Values<S, VEC> y = cos_sin<true, false, T>(x).cos;
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    const S cos = y.v[v], product = x.v[v] * cos;
    if constexpr (sizeof(T) == 2) {
      y.v[v] = fma(x.v[v], cos, fmax(product, cos));
    } else {  // the other sum would lose digits near x = -1, of which half types have enough
      y.v[v] = product > cos ? product + product : cos * (1 + x.v[v]);
    }
  }
  return y;
}

// Its derivative; where the two are equal, half of each.
template <typename T, typename S, int VEC>
__device__ __forceinline__ Values<S, VEC> slope(const Values<S, VEC>& x) {
  const auto at = cos_sin<true, true, T>(x);
  Values<S, VEC> dx;
#pragma unroll
  for (int v = 0; v < VEC; ++v) {
    const S cos = at.cos.v[v], sin = at.sin.v[v], of_product = cos - x.v[v] * sin;
    S of_max = x.v[v] * cos > cos ? of_product : -sin;
    if (x.v[v] == 1) of_max = (of_product - sin) * S(0.5);
    dx.v[v] = of_product + of_max;
  }
  return dx;
}

template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> forward_of(const Pack<T, VEC>& x) {
  return pack<T>(chain<T>(unpack<Stat<T>>(x)));
}
template <typename T, int VEC>
__device__ __forceinline__ Pack<T, VEC> backward_of(const Pack<T, VEC>& x, const Pack<T, VEC>& dy) {
  auto dx = slope<T>(unpack<Stat<T>>(x));
  const auto factor = unpack<Stat<T>>(dy);
#pragma unroll
  for (int v = 0; v < VEC; ++v) dx.v[v] *= factor.v[v];
  return pack<T>(dx);
}

// y of x or, with dy, dx. A thread has BYTES of a tensor.
template <bool BACKWARD, int BYTES, typename T, int VEC>
__global__ void __launch_bounds__(kThreads)
    chain_kernel(const T* dy, const T* x, T* to, int64_t packs) {
  constexpr int PACKS = BYTES / sizeof(T) / VEC;
  const int64_t first = int64_t{blockIdx.x} * (PACKS * kThreads) + threadIdx.x;
  Pack<T, VEC> of[PACKS], d[PACKS];
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int64_t at = first + i * kThreads;
    if (at >= packs) break;
    of[i] = load<T, VEC>(retained(x) + at * VEC);
    if constexpr (BACKWARD) d[i] = load<T, VEC>(retained(dy) + at * VEC);
  }
#pragma unroll
  for (int i = 0; i < PACKS; ++i) {
    const int64_t at = first + i * kThreads;
    if (at >= packs) break;
    if constexpr (BACKWARD) {
      store<T, VEC>(to + at * VEC, backward_of(of[i], d[i]));
    } else {
      store<T, VEC>(to + at * VEC, forward_of(of[i]));
    }
  }
}

namespace {

template <bool BACKWARD, int BYTES, typename T>
cudaError_t launch_by(const T* dy, const T* x, T* to, int64_t numel, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(numel, kThreads * (BYTES / sizeof(T))));
  if (aligned<T>(dy, 0) && aligned<T>(x, 0) && aligned<T>(to, numel)) {
    constexpr int VEC = kVec<T>;
    chain_kernel<BACKWARD, BYTES, T, VEC><<<blocks, kThreads, 0, stream>>>(dy, x, to, numel / VEC);
  } else {
    chain_kernel<BACKWARD, BYTES, T, 1><<<blocks, kThreads, 0, stream>>>(dy, x, to, numel);
  }
  return cudaGetLastError();
}

// dy null: of the forward. Much to do for a thread hides more, little begins sooner.
template <bool BACKWARD, typename T>
cudaError_t launch(const T* dy, const T* x, T* to, int64_t numel, cudaStream_t stream) {
  constexpr bool HALF = sizeof(T) == 2;
  if ((HALF || BACKWARD) && numel > 32 << 20) {
    return launch_by<BACKWARD, 64>(dy, x, to, numel, stream);
  }
  return launch_by<BACKWARD, HALF ? 32 : 16>(dy, x, to, numel, stream);
}

}  // namespace
}  // namespace fuseline::pointwise_chain
