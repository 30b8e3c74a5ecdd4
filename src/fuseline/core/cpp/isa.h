// The instruction set whose CPU kernels run.
#pragma once

namespace fuseline {

enum class Isa { none, basic, avx2, avx512 };

// The widest this processor has of those that kernels are built for: AVX-512 and AVX2 on x86-64,
// the compiler's default elsewhere; or the one FUSELINE_CPU_ISA names ("avx512", "avx2", "default",
// "none"). Raises where there is none.
Isa isa();

// Why there is none; null where there is one.
const char* why_no_isa();

}  // namespace fuseline

// In the operator's namespace: kernels(), its table of `type` for isa(), of those that
// cmake/units.cmake writes.
#ifdef __x86_64__
#define FUSELINE_CPU_KERNELS(type)                                                       \
  extern const type kernels_avx2, kernels_avx512;                                        \
  namespace {                                                                            \
  const type& kernels() { return isa() == Isa::avx512 ? kernels_avx512 : kernels_avx2; } \
  }
#else
#define FUSELINE_CPU_KERNELS(type)                         \
  extern const type kernels_default;                       \
  namespace {                                              \
  const type& kernels() { return isa(), kernels_default; } \
  }
#endif
