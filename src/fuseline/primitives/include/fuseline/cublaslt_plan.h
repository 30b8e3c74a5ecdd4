// Plans of cuBLASLt: descriptors and the algorithm of a problem, kept by all that it depends on.
#pragma once

#include <cstring>
#include <unordered_map>

#include "fuseline/core/cpp/tensor.h"
#include "fuseline/cublaslt.h"

// What cuBLASLt is asked for is D = op(A) op(B), column-major. y = a b, row-major, is its
// transpose: A is b, B is a, and what it calls rows are the columns of y.
namespace fuseline::cublaslt {

constexpr size_t kWorkspace = 32 << 20;  // torch's own on Hopper

inline void require(int status, const char* what) {
  STD_TORCH_CHECK(status == 0, "_product: cuBLASLt: ", what, " gave status ", status);
}

struct Problem {
  int64_t batch, m, n, k;
  int64_t lda, ldb, batch_a, batch_b;
  int64_t alignment_a, alignment_b;
  int64_t device, type;
  int64_t transposed_a, transposed_b, epilogue, tf32;
  bool operator==(const Problem& o) const { return !std::memcmp(this, &o, sizeof o); }
};

struct Hash {
  size_t operator()(const Problem& p) const {
    const auto* words = reinterpret_cast<const int64_t*>(&p);
    size_t h = 0;
    for (size_t i = 0; i < sizeof p / sizeof *words; ++i) {
      h = (h ^ static_cast<size_t>(words[i])) * 0x9e3779b97f4a7c15;
      h ^= h >> 29;
    }
    return h;
  }
};

template <typename F>
class Guarded {
 public:
  explicit Guarded(F destroy) : destroy_(destroy) {}
  Guarded(const Guarded&) = delete;
  ~Guarded() {
    if (value) destroy_(value);
  }
  void* value = nullptr;

 private:
  F destroy_;
};

// Descriptors and the algorithm of a problem. Pointers are set before each use, so it is of one
// thread.
class Plan {
 public:
  Plan(const Library& l, Handle handle, const Problem& p)
      : l_(l), desc(l.desc_destroy), a(l.layout_destroy), b(l.layout_destroy), d(l.layout_destroy) {
    const Type type = static_cast<Type>(p.type);
    const bool f64 = type == Type::f64;
    const Compute compute = f64 ? Compute::f64 : p.tf32 ? Compute::tf32 : Compute::f32;
    require(l.desc_create(&desc.value, compute, f64 ? Type::f64 : Type::f32), "a descriptor");
    set(DescAttribute::transpose_a, static_cast<int32_t>(p.transposed_b));
    set(DescAttribute::transpose_b, static_cast<int32_t>(p.transposed_a));
    set(DescAttribute::epilogue, static_cast<uint32_t>(p.epilogue));
    if (p.epilogue & kAux) {
      set(DescAttribute::aux_ld, p.n);
      set(DescAttribute::aux_batch_stride, p.m * p.n);
      set_aux(reinterpret_cast<void*>(uintptr_t{256}));  // its alignment is what counts
    }
    layout(a, type, p.n, p.k, p.ldb, p.transposed_b, p.batch, p.batch_b);
    layout(b, type, p.k, p.m, p.lda, p.transposed_a, p.batch, p.batch_a);
    layout(d, type, p.n, p.m, p.n, false, p.batch, p.m * p.n);
    Guarded<decltype(l.pref_destroy)> pref(l.pref_destroy);
    require(l.pref_create(&pref.value), "a preference");
    const auto prefer = [&](Preference which, auto value) {
      require(l.pref_set(pref.value, which, &value, sizeof value), "a preference");
    };
    prefer(Preference::workspace, kWorkspace);
    prefer(Preference::reductions, kExactReductions);
    prefer(Preference::alignment_a, static_cast<uint32_t>(p.alignment_b));
    prefer(Preference::alignment_b, static_cast<uint32_t>(p.alignment_a));
    int count = 0;
    const int status = l.heuristic(handle, desc.value, a.value, b.value, d.value, d.value,
                                   pref.value, 1, &found, &count);
    STD_TORCH_CHECK(status == 0 && count > 0, "_product: cuBLASLt has no algorithm for m ", p.m,
                    ", n ", p.n, ", k ", p.k, ", batch ", p.batch, ", epilogue ", p.epilogue,
                    " (status ", status, ")");
  }

  void set_bias(const void* pointer) { set(DescAttribute::bias_pointer, pointer); }
  void set_aux(const void* pointer) { set(DescAttribute::aux_pointer, pointer); }

 private:
  using DestroyLayout = decltype(Library::layout_destroy);

  template <typename V>
  void set(DescAttribute which, V value) {
    require(l_.desc_set(desc.value, which, &value, sizeof value), "an attribute");
  }

  // Of a matrix of `rows` by `columns` once transposed.
  void layout(Guarded<DestroyLayout>& to, Type type, int64_t rows, int64_t columns, int64_t ld,
              bool transposed, int64_t batch, int64_t batch_stride) {
    if (transposed) std::swap(rows, columns);
    require(l_.layout_create(&to.value, type, rows, columns, ld), "a layout");
    const auto count = static_cast<int32_t>(batch);
    require(l_.layout_set(to.value, LayoutAttribute::batch_count, &count, sizeof count), "a batch");
    require(
        l_.layout_set(to.value, LayoutAttribute::batch_stride, &batch_stride, sizeof batch_stride),
        "a batch");
  }

  const Library& l_;

 public:
  Guarded<decltype(Library::desc_destroy)> desc;
  Guarded<DestroyLayout> a, b, d;
  Heuristic found;
};

inline Plan& plan_of(const Library& l, Handle handle, const Problem& p) {
  constexpr size_t kMost = 4096;
  thread_local std::unordered_map<Problem, Plan, Hash> plans;
  const auto known = plans.find(p);
  if (known != plans.end()) return known->second;
  if (plans.size() >= kMost) plans.clear();
  return plans
      .emplace(std::piecewise_construct, std::forward_as_tuple(p),
               std::forward_as_tuple(l, handle, p))
      .first->second;
}

}  // namespace fuseline::cublaslt
