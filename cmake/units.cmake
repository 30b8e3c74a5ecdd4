# Writes the translation units that only instantiate, into the build folder's units/: CPU kernels
# once for each instruction set, CUDA kernels that several operators share once for each dtype.

# An x86-64 processor without AVX2 has no CPU kernels: they would be a fifth of all CPU code.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(INSTRUCTION_SETS avx2 avx512)
else()
  set(INSTRUCTION_SETS default)
endif()
set(FLAGS_default "")
set(FLAGS_avx2 -mavx2 -mfma -mf16c)
set(FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c)

# Operators whose kernels are smaller at -O2 by a quarter and as fast or faster (decision 0019). The
# norms, softmax and log_softmax are not: their short rows take up to 1.8 times as long.
set(AT_O2 bias_gelu double_softmax horizontal_reduction_pointwise horizontal_reduction_reduction
  layer_fp8 masked_softmax pointwise_chain rms_fp8)

# kernels_avx2 and kernels_avx512, or kernels_default, which FUSELINE_CPU_KERNELS declares: `table`
# of `header`, compiled for each.
function(cpu_units operator header table)
  foreach(isa ${INSTRUCTION_SETS})
    set(unit ${CMAKE_BINARY_DIR}/units/${operator}/impl_cpu_${isa}.cpp)
    file(CONFIGURE OUTPUT ${unit} @ONLY CONTENT [[
#include "@header@"

namespace fuseline::@operator@ {
extern decltype(@table@) kernels_@isa@;
decltype(@table@) kernels_@isa@ = @table@;
}
]])
    set(flags ${FLAGS_${isa}})
    if(operator IN_LIST AT_O2)
      list(APPEND flags -O2)
    endif()
    set_source_files_properties(${unit} PROPERTIES COMPILE_OPTIONS "${flags}")
    list(APPEND CPU_UNITS ${unit})
  endforeach()
  set(CPU_UNITS ${CPU_UNITS} PARENT_SCOPE)
endfunction()

set(TYPE_f64 double)
set(TYPE_f32 float)
set(TYPE_f16 __half)
set(TYPE_bf16 __nv_bfloat16)

# `instantiation` of a macro of `header`, with each of the dtypes for its @TYPE@.
function(cuda_units operator name header instantiation)
  foreach(dtype ${ARGN})
    set(TYPE ${TYPE_${dtype}})
    string(CONFIGURE "${instantiation}" line @ONLY)
    set(unit ${CMAKE_BINARY_DIR}/units/${operator}/${name}_${dtype}.cu)
    file(CONFIGURE OUTPUT ${unit} @ONLY CONTENT [[
#include "@header@"

@line@
]])
    list(APPEND CUDA_UNITS ${unit})
  endforeach()
  set(CUDA_UNITS ${CUDA_UNITS} PARENT_SCOPE)
endfunction()

# An operator with kernels of its own has their table, kKernels, in impl_cpu_kernels.h.
file(GLOB headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/src
  ${CMAKE_SOURCE_DIR}/src/fuseline/ops/*/impl_cpu_kernels.h)
foreach(header ${headers})
  string(REGEX REPLACE ".*/([^/]+)/[^/]+$" "\\1" operator ${header})
  cpu_units(${operator} ${header} kKernels)
endforeach()

set(header fuseline/cpu/rms_rows_kernels.h)
cpu_units(rms_norm ${header} "rms::kKernels<false>")
cpu_units(add_rms_norm ${header} "rms::kKernels<true>")

# Of several operators.
set(header fuseline/cpu/fp8/norm_fp8_kernels.h)
cpu_units(rms_fp8 ${header} "fp8::kKernels<false>")
cpu_units(layer_fp8 ${header} "fp8::kKernels<true>")

set(header fuseline/cuda/norm/rms_cuda_launch.cuh)
set(dtypes f64 f32 f16 bf16)
cuda_units(rms_norm impl_cuda ${header} "FUSELINE_RMS_INSTANTIATE(@TYPE@, false)" ${dtypes})
cuda_units(add_rms_norm impl_cuda ${header} "FUSELINE_RMS_INSTANTIATE(@TYPE@, true)" ${dtypes})
cuda_units(rms_norm_fp8 impl_cuda ${header} "FUSELINE_RMS_INSTANTIATE_E4M3(@TYPE@)" f32 f16 bf16)
cuda_units(layer_norm impl_cuda_bwd ${header}
  "FUSELINE_RMS_INSTANTIATE_BWD(@TYPE@, fuseline::rms::Kind::kCentred)" ${dtypes})
