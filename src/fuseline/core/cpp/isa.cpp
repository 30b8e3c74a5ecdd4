// Chooses the instruction set of the CPU kernels once. FUSELINE_CPU_ISA names another for tests.
#include "isa.h"

#include <torch/csrc/stable/library.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define FUSELINE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fuseline {
namespace {

struct Choice {
  Isa isa;
  const char* name;
  bool supported;
};

const Choice& choose() {
  static const Choice choices[] = {
#ifdef __x86_64__
      {Isa::avx512, "avx512",
       __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")},
      {Isa::avx2, "avx2",
       __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("f16c")},
#else
      {Isa::basic, "default", true},
#endif
      {Isa::none, "none", true},
  };
  const char* wanted = std::getenv("FUSELINE_CPU_ISA");
  const Choice* widest = nullptr;
  for (const Choice& c : choices) {
    if (!c.supported) continue;
    if (!wanted || std::strcmp(wanted, c.name) == 0) return c;
    if (!widest) widest = &c;
  }
  std::fprintf(stderr, "fuseline: FUSELINE_CPU_ISA=%s is not available here, taking %s of:", wanted,
               widest->name);
  for (const Choice& c : choices) {
    if (c.supported) std::fprintf(stderr, " %s", c.name);
  }
  std::fprintf(stderr, "\n");
  return *widest;
}

const Choice& chosen() {
  static const Choice& choice = choose();
  return choice;
}

}  // namespace

Isa isa() {
  const char* const why = why_no_isa();
  STD_TORCH_CHECK(!why, "fuseline: ", why);
  return chosen().isa;
}

const char* why_no_isa() {
  return chosen().isa == Isa::none
             ? "this processor lacks AVX2, FMA or F16C, which fuseline's CPU kernels need"
             : nullptr;
}

}  // namespace fuseline

FUSELINE_EXPORT const char* fuseline_why_no_cpu_isa() { return fuseline::why_no_isa(); }

// For tests, which must know which kernels ran.
FUSELINE_EXPORT const char* fuseline_cpu_isa() { return fuseline::chosen().name; }
