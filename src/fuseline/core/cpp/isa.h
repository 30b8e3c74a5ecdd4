// The instruction set whose CPU kernels run.
#pragma once

namespace fuseline {

enum class Isa { basic, avx2, avx512 };

// The widest this processor has of those that kernels are built for, or the one FUSELINE_CPU_ISA
// names ("default", "avx2", "avx512").
Isa isa();

}  // namespace fuseline

// table_avx512, table_avx2 or table_default, by isa(); other processors have only the last.
#ifdef __x86_64__
#define FUSELINE_BY_ISA(table) \
  (isa() == Isa::avx512 ? table##_avx512 : isa() == Isa::avx2 ? table##_avx2 : table##_default)
#else
#define FUSELINE_BY_ISA(table) (table##_default)
#endif
