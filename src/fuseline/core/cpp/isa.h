// The instruction set whose CPU kernels run.
#pragma once

namespace fuseline {

enum class Isa { basic, avx2, avx512 };

// The widest this processor has of those that kernels are built for, or the one FUSELINE_CPU_ISA
// names ("default", "avx2", "avx512").
Isa isa();

}  // namespace fuseline
