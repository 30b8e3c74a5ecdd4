// Chooses the CPU kernels once: the widest instruction set the processor has. FUSELINE_CPU_ISA
// names another for tests.
#include "impl_cpu_dispatch.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fuseline::rms_norm {
namespace {

struct Choice {
  const Kernels* kernels;
  bool supported;
};

const Kernels& choose() {
  const Choice choices[] = {
#ifdef __x86_64__
      {&kernels_avx512, __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") &&
                            __builtin_cpu_supports("avx512vl")},
      {&kernels_avx2, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c")},
#endif
      {&kernels_default, true},
  };
  const char* wanted = std::getenv("FUSELINE_CPU_ISA");
  const Kernels* widest = nullptr;
  for (const Choice& c : choices) {
    if (!c.supported) continue;
    if (!wanted || std::strcmp(wanted, c.kernels->isa) == 0) return *c.kernels;
    if (!widest) widest = c.kernels;
  }
  std::fprintf(stderr, "fuseline: FUSELINE_CPU_ISA=%s is not available here, taking %s of:", wanted,
               widest->isa);
  for (const Choice& c : choices) {
    if (c.supported) std::fprintf(stderr, " %s", c.kernels->isa);
  }
  std::fprintf(stderr, "\n");
  return *widest;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace fuseline::rms_norm

// For tests, which must know which kernels ran.
extern "C" __attribute__((visibility("default"))) const char* fuseline_rms_norm_isa() {
  return fuseline::rms_norm::kernels().isa;
}
