// Parameters of operators of row_cuda.cuh, such as a weight: one element a column, or none at all.
#pragma once

#include "fuseline/cuda/rows/row_cuda.cuh"

namespace fuseline::rows {

// 16 bytes of what stands for no addend, and for no factor of each type.
static __device__ const uint4 kNone[] = {{},
                                         {0, 0x3ff00000, 0, 0x3ff00000},
                                         {0x3f800000, 0x3f800000, 0x3f800000, 0x3f800000},
                                         {0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00},
                                         {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80}};
template <typename W>
constexpr int kOnes = sizeof(W) == 8              ? 1
                      : sizeof(W) == 4            ? 2
                      : std::is_same_v<W, __half> ? 3
                                                  : 4;

// A pack of a parameter of W for rows of T. 8 elements of half types are 32 bytes of fp32, which no
// access has. GIVEN: it is never absent.
template <typename T, typename W, int VEC, bool GIVEN = false>
struct Parameter {
  using S = Stat<T>;
  static constexpr int ONE = VEC < 16 / static_cast<int>(sizeof(W)) ? VEC : 16 / sizeof(W);
  Pack<W, ONE> packs[VEC / ONE];

  // Without a parameter `none` is loaded: a choice of values would be one for each element.
  template <bool EARLY>
  __device__ __forceinline__ void load(bool wanted, const W* from, int64_t column,
                                       const uint4& none) {
    const bool is = GIVEN || from;
#pragma unroll
    for (int i = 0; i < VEC / ONE; ++i) {
      const W* const at = is ? from + column + i * ONE : reinterpret_cast<const W*>(&none);
      if constexpr (EARLY || sizeof(T) == 8 || sizeof(W) * ONE < 16) {
        if (wanted) packs[i] = fuseline::load<W, ONE>(at);  // where it stands
      } else {
        uint4 bits = late(wanted, at);
        packs[i] = *reinterpret_cast<const Pack<W, ONE>*>(&bits);
      }
    }
  }
  // The same of the elements that are there, from any address; `none` for the others.
  template <typename Span>
  __device__ __forceinline__ void load_some(const Span& at, int i, const W* from, W none) {
    Pack<W, VEC> all = filled<VEC>(none);
    if (from) load_pack(from, at, i, all);
#pragma unroll
    for (int v = 0; v < VEC; ++v) packs[v / ONE].v[v % ONE] = all.v[v];
  }
  // Half types have registers for all packs at once, so a load that may go ahead of other packs'
  // stores is better; fp32's, with a condition of its own, goes ahead of the pack's own only.
  static __device__ __forceinline__ uint4 late(bool wanted, const W* at) {
    uint4 v{};
    if constexpr (sizeof(T) == 2) {
      if (wanted) v = __ldg(reinterpret_cast<const uint4*>(at));
    } else {
#ifdef __CUDA_ARCH__
      asm("{\n.reg .pred wanted;\nsetp.ne.s32 wanted, %5, 0;\n"
          "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"
          "@wanted ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
          : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
          : "l"(at), "r"(static_cast<int>(wanted)));
#else
      if (wanted) v = *reinterpret_cast<const uint4*>(at);
#endif
    }
    return v;
  }
  __device__ __forceinline__ Values<S, VEC> values() const {
    Values<S, VEC> all;
#pragma unroll
    for (int i = 0; i < VEC / ONE; ++i) {
      const auto some = unpack<S>(packs[i]);
#pragma unroll
      for (int v = 0; v < ONE; ++v) all.v[i * ONE + v] = some.v[v];
    }
    return all;
  }
};

// The elements of a parameter that are there, from any address, or `none`, which nothing waits for
// until their values are asked for; that takes registers.
template <typename T, typename W, int VEC>
struct LooseParameter {
  Loose<W, VEC> coming;
  bool in_pairs;

  template <typename Span>
  __device__ __forceinline__ void load_some(const Span& at, int i, const W* from, W none) {
#pragma unroll
    for (int v = 0; v < VEC; ++v) put(coming, v, none);
    in_pairs = from && at.in_pairs(from);
    if (in_pairs) {
      load_pack<true>(from, at, i, coming);
    } else if (from) {
      load_pack<false>(from, at, i, coming);
    }
  }
  __device__ __forceinline__ Values<Stat<T>, VEC> values() const {
    return unpack<Stat<T>>(coming.pack(in_pairs));
  }
};

template <typename T, typename W, int VEC, bool EARLY>
using SomeParameter = std::conditional_t<EARLY, LooseParameter<T, W, VEC>, Parameter<T, W, VEC>>;

}  // namespace fuseline::rows
