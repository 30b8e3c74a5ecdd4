// Rotations of pairs on a GPU: queries and keys in one launch, each thread a pack of pairs of a
// row.
#pragma once

#include "fuseline/cuda/blocks.cuh"
#include "fuseline/cuda/packs.cuh"

namespace fuseline::rope {

constexpr int kThreads = 128;

// Heads that are rotated, and how far apart they have batches, heads, tokens and elements.
template <typename T>
struct Heads {
  const T* x;
  T* y;
  int64_t x_steps[4], y_steps[4];
};

// Tables, by batch, token, element of a pair and pair.
template <typename C>
struct Tables {
  const C *cos, *sin;
  int64_t cos_steps[4], sin_steps[4];
};

template <typename T, typename C>
struct Problem {
  Heads<T> of[2];
  Tables<C> tables;
  unsigned heads[2], batches, tokens;
  unsigned pairs, rest;      // of a row: the columns behind the pairs are copied
  bool back, both;           // by the negative sines; tables have numbers for both of a pair
  unsigned blocks, rotated;  // of a token; packs of pairs
  Divider packs;             // of a row
};

// Values of pairs, in two packs as a row has them, by tables for the first and the second of each.
template <bool INTERLEAVED, typename S, int VEC>
__device__ __forceinline__ void turn(Values<S, VEC>& a, Values<S, VEC>& b,
                                     const Values<S, VEC> (&cos)[2], const Values<S, VEC> (&sin)[2],
                                     bool back) {
  const auto at = [&](int i) -> S& { return i < VEC ? a.v[i] : b.v[i - VEC]; };
#pragma unroll
  for (int i = 0; i < VEC; ++i) {
    S& first = at(INTERLEAVED ? 2 * i : i);
    S& second = at(INTERLEAVED ? 2 * i + 1 : VEC + i);
    const S x = first, s = sin[0].v[i], t = sin[1].v[i];
    first = fma(x, cos[0].v[i], -(second * (back ? -s : s)));
    second = fma(second, cos[1].v[i], x * (back ? -t : t));
  }
}

// A block has rows of one token, of several heads. Packs are at multiples of their size, and rows
// whole packs, or all are of single elements, which may lie apart.
template <typename T, typename C, int VEC, bool INTERLEAVED>
__global__ void __launch_bounds__(kThreads) rotate_kernel(const __grid_constant__ Problem<T, C> a) {
  using S = Stat<T>;
  const unsigned row = blockIdx.x / a.blocks, batch = row / a.tokens, token = row % a.tokens;
  unsigned head = blockIdx.x % a.blocks * kThreads + threadIdx.x;
  if (head >= (a.heads[0] + a.heads[1]) * a.packs.by) return;
  const unsigned pack_index = a.packs.rest(head);
  const bool second = head >= a.heads[0];
  if (second) head -= a.heads[0];
  const Heads<T>& of = second ? a.of[1] : a.of[0];
  const auto place = [&](const int64_t (&steps)[4]) {
    return times(batch, steps[0]) + times(head, steps[1]) + times(token, steps[2]);
  };
  const T* const x = of.x + place(of.x_steps);
  T* const y = of.y + place(of.y_steps);
  const auto in = [&](unsigned column) { return x + times(column, of.x_steps[3]); };
  const auto out = [&](unsigned column) { return y + times(column, of.y_steps[3]); };
  if (pack_index >= a.rotated) {
    const unsigned column = 2 * a.pairs + (pack_index - a.rotated) * VEC;
    return store<T, VEC>(out(column), load<T, VEC>(in(column)));
  }
  const unsigned pair = pack_index * VEC;
  const auto table = [&](const C* t, const int64_t (&steps)[4], Values<S, VEC>(&of)[2]) {
    t += times(batch, steps[0]) + times(token, steps[1]) + times(pair, steps[3]);
    of[0] = of[1] = unpack<S>(load<C, VEC>(t));
    if (a.both) of[1] = unpack<S>(load<C, VEC>(t + steps[2]));
  };
  const unsigned one = INTERLEAVED ? 2 * pair : pair;
  const unsigned two = INTERLEAVED ? one + VEC : a.pairs + pair;
  const Pack<T, VEC> ones = load<T, VEC>(in(one)), twos = load<T, VEC>(in(two));
  Values<S, VEC> cos[2], sin[2];
  table(a.tables.cos, a.tables.cos_steps, cos);
  table(a.tables.sin, a.tables.sin_steps, sin);
  auto first = unpack<S>(ones), other = unpack<S>(twos);
  turn<INTERLEAVED>(first, other, cos, sin, a.back);
  store<T, VEC>(out(one), pack<T>(first));
  store<T, VEC>(out(two), pack<T>(other));
}

namespace {

template <typename T, typename C>
bool in_packs(const Problem<T, C>& a) {
  constexpr int VEC = 16 / sizeof(T);
  bool whole = a.pairs % VEC == 0 && a.rest % VEC == 0;
  const auto lie = [&](const auto* p, const auto& steps, int last) {
    whole &= reinterpret_cast<uintptr_t>(p) % 16 == 0 && steps[last] == 1;
    for (int i = 0; i < last; ++i) whole &= steps[i] * sizeof(*p) % 16 == 0;
  };
  for (const auto& of : a.of) {
    lie(of.x, of.x_steps, 3);
    lie(of.y, of.y_steps, 3);
  }
  lie(a.tables.cos, a.tables.cos_steps, 3);
  lie(a.tables.sin, a.tables.sin_steps, 3);
  return whole;
}

// Rows by packs of VEC; cudaErrorInvalidValue of more than a grid has blocks, or a token threads.
template <int VEC, typename T, typename C>
cudaError_t launch_by(Problem<T, C> a, bool interleaved, cudaStream_t stream) {
  constexpr int64_t kMost = 1 << 30;
  a.rotated = a.pairs / VEC;
  const int64_t packs = int64_t{a.rotated} + a.rest / VEC;
  const int64_t threads = (int64_t{a.heads[0]} + a.heads[1]) * packs;
  const int64_t blocks = ceil_div(threads, kThreads), rows = int64_t{a.batches} * a.tokens;
  if (threads >= kMost || rows * blocks >= 2 * kMost) return cudaErrorInvalidValue;
  if (rows * blocks == 0) return cudaSuccess;
  a.packs = divider(packs);
  a.blocks = static_cast<unsigned>(blocks);
  const auto kernel =
      interleaved ? rotate_kernel<T, C, VEC, true> : rotate_kernel<T, C, VEC, false>;
  kernel<<<static_cast<unsigned>(rows * blocks), kThreads, 0, stream>>>(a);
  return cudaGetLastError();
}

template <typename T, typename C>
cudaError_t launch(const Problem<T, C>& a, bool interleaved, cudaStream_t stream) {
  constexpr int VEC = 16 / sizeof(T);
  return in_packs(a) ? launch_by<VEC>(a, interleaved, stream)
                     : launch_by<1>(a, interleaved, stream);
}

}  // namespace
}  // namespace fuseline::rope
