// The binary's process-wide state and the C functions through which core/native.py reads it.
#include <atomic>

#include "build_info.h"
#include "tensor.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#define FUSELINE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fuseline {
namespace {

std::atomic<int64_t> copies{0};
std::atomic<bool> fill{false};

// An anonymous mapping this large is fresh from the kernel, which would otherwise fault it in one
// 4 KiB page at a time: (4, 512, 4096) fp32 forward takes 9 ms with small pages and 3 with huge
// ones.
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kAdviseFrom = 2 * kHugePage;

}  // namespace

void count_copy() { copies.fetch_add(1, std::memory_order_relaxed); }
bool debug_fill() { return fill.load(std::memory_order_relaxed); }

void advise_huge_pages(void* data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes < kAdviseFrom) return;
  const auto first = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const auto last = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePage - 1);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

}  // namespace fuseline

FUSELINE_EXPORT int64_t fuseline_copies() { return fuseline::copies.load(); }
FUSELINE_EXPORT void fuseline_debug_fill(bool on) { fuseline::fill.store(on); }
FUSELINE_EXPORT const char* fuseline_build_info() { return FUSELINE_BUILD_INFO; }
