// The part of cuBLASLt's C interface that products use, bound to the library that torch has mapped:
// no header of it is needed to build, and no second copy is loaded. Numbers are cublasLt.h's.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>

namespace fuseline::cublaslt {

enum class Compute : int32_t { f32 = 68, f64 = 70, tf32 = 77 };
enum class Type : int32_t { f32 = 0, f64 = 1, f16 = 2, bf16 = 14 };
// Flags: GELU_AUX_BIAS is gelu + aux + bias. Sums of b are BGRADA, those of a BGRADB: what
// cuBLASLt is asked for is the transpose.
enum Epilogue : uint32_t {
  kNone = 1,
  kRelu = 2,
  kBias = 4,
  kGelu = 32,
  kAux = 128,
  kSumsOfB = 256,
  kSumsOfA = 512,
};
enum class DescAttribute : int32_t {
  transpose_a = 3,
  transpose_b = 4,
  epilogue = 7,
  bias_pointer = 8,
  aux_pointer = 11,
  aux_ld = 12,
  aux_batch_stride = 13,
};
enum class LayoutAttribute : int32_t { batch_count = 5, batch_stride = 6 };
enum class Preference : int32_t { workspace = 1, reductions = 3, alignment_a = 5, alignment_b = 6 };
// Of partial products: in place or in the type of the computation, not in that of the result.
constexpr uint32_t kExactReductions = 3;

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace;
  int32_t status;
  float waves;
  int32_t reserved[4];
};

using Handle = void*;
using Desc = void*;
using Layout = void*;
using Pref = void*;

struct Library {
  int (*desc_create)(Desc*, Compute, Type);
  int (*desc_destroy)(Desc);
  int (*desc_set)(Desc, DescAttribute, const void*, size_t);
  int (*layout_create)(Layout*, Type, uint64_t rows, uint64_t columns, int64_t ld);
  int (*layout_destroy)(Layout);
  int (*layout_set)(Layout, LayoutAttribute, const void*, size_t);
  int (*pref_create)(Pref*);
  int (*pref_destroy)(Pref);
  int (*pref_set)(Pref, Preference, const void*, size_t);
  int (*heuristic)(Handle, Desc, Layout a, Layout b, Layout c, Layout d, Pref, int wanted,
                   Heuristic* found, int* count);
  int (*matmul)(Handle, Desc, const void* alpha, const void* a, Layout, const void* b, Layout,
                const void* beta, const void* c, Layout, void* d, Layout, const Algorithm*,
                void* workspace, size_t, cudaStream_t);
  int (*blas_handle)(void**);  // torch's, for the current device and stream
};

// Null where torch has not mapped them.
inline const Library* library() {
  static const Library* const bound = []() -> const Library* {
    void* lt = nullptr;
    for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12"}) {
      if (!lt) lt = dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
    }
    void* const torch = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!lt || !torch) return nullptr;
    static Library l;
    bool all = true;
    const auto bind = [&](auto& function, void* from, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(from, name));
      all = all && function;
    };
    bind(l.desc_create, lt, "cublasLtMatmulDescCreate");
    bind(l.desc_destroy, lt, "cublasLtMatmulDescDestroy");
    bind(l.desc_set, lt, "cublasLtMatmulDescSetAttribute");
    bind(l.layout_create, lt, "cublasLtMatrixLayoutCreate");
    bind(l.layout_destroy, lt, "cublasLtMatrixLayoutDestroy");
    bind(l.layout_set, lt, "cublasLtMatrixLayoutSetAttribute");
    bind(l.pref_create, lt, "cublasLtMatmulPreferenceCreate");
    bind(l.pref_destroy, lt, "cublasLtMatmulPreferenceDestroy");
    bind(l.pref_set, lt, "cublasLtMatmulPreferenceSetAttribute");
    bind(l.heuristic, lt, "cublasLtMatmulAlgoGetHeuristic");
    bind(l.matmul, lt, "cublasLtMatmul");
    bind(l.blas_handle, torch, "torch_get_current_cuda_blas_handle");
    return all ? &l : nullptr;
  }();
  return bound;
}

}  // namespace fuseline::cublaslt
