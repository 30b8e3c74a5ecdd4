// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) in vectors:
// element i of a tensor has number i % 4 of counter i / 4, as Triton's randint4x(seed, i / 4).
#pragma once

#include "fuseline/cpu/vectors/lanes.h"
#include "impl_cpu_dispatch.h"

namespace fuseline::bias_dropout_add {
namespace {

constexpr int kCounters = kLanes<double>;
using Words = Lanes<uint64_t, kCounters>;  // 32 bits each; the upper half is anything

// The 64 bits of the product of a's lower halves with `factor`.
inline Words multiply(const Words& a, uint32_t factor) {
#if defined(__AVX512F__)
  return bit_cast<Words>(_mm512_mul_epu32(bit_cast<__m512i>(a), _mm512_set1_epi64(factor)));
#elif defined(__AVX2__)
  return bit_cast<Words>(_mm256_mul_epu32(bit_cast<__m256i>(a), _mm256_set1_epi64x(factor)));
#else
  return (a & 0xffffffff) * factor;
#endif
}

// The factors of the elements of kCounters counters, from 4 * counter on.
template <class C>
inline void draw_counters(C* factors, uint64_t counter, const Dropout& dropout) {
  Words lane;
  for (int i = 0; i < kCounters; ++i) lane[i] = i;
  Words a = lane + counter, b = a >> 32, c = {}, d = {};
  uint32_t key0 = dropout.seed, key1 = dropout.seed >> 32;
  for (int round = 0; round < 10; ++round) {
    const Words of_a = multiply(a, 0xD2511F53), of_c = multiply(c, 0xCD9E8D57);
    a = (of_c >> 32) ^ b ^ key0;
    c = (of_a >> 32) ^ d ^ key1;
    b = of_c;
    d = of_a;
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  const Words first = (a & 0xffffffff) | (b << 32), second = (c & 0xffffffff) | (d << 32);
  uint64_t pairs[2 * kCounters];
  for (int i = 0; i < kCounters; ++i) {
    pairs[2 * i] = first[i];
    pairs[2 * i + 1] = second[i];
  }
  uint32_t numbers[4 * kCounters];
  std::memcpy(numbers, pairs, sizeof(pairs));
  const C scale = dropout.scale;
  for (int i = 0; i < 4 * kCounters; ++i) factors[i] = numbers[i] < dropout.threshold ? 0 : scale;
}

// The factors of n elements from `position` on: 0 or the scale.
template <class C>
void draw(C* factors, uint64_t position, int64_t n, const Dropout& dropout) {
  constexpr int64_t kDrawn = 4 * kCounters;
  int64_t i = -static_cast<int64_t>(position % 4);
  for (uint64_t counter = position / 4; i < n; i += kDrawn, counter += kCounters) {
    if (i >= 0 && i + kDrawn <= n) {
      draw_counters(factors + i, counter, dropout);
      continue;
    }
    C drawn[kDrawn];
    draw_counters(drawn, counter, dropout);
    for (int64_t j = i < 0 ? -i : 0; j < kDrawn && i + j < n; ++j) factors[i + j] = drawn[j];
  }
}

}  // namespace
}  // namespace fuseline::bias_dropout_add
