// The binary's process-wide state and the C functions through which core/native.py reads it.
#include <atomic>
#include <fstream>
#include <limits>
#include <string>

#include "build_info.h"
#include "fuseline/core/cpp/copies.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#define FUSELINE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fuseline {
namespace {

std::atomic<int64_t> copies{0}, own_bytes{0};
std::atomic<bool> fill{false};
bool (*copied_on_cuda)(const Tensor&, const Tensor&) = nullptr;

// An anonymous mapping this large is fresh from the kernel, which would otherwise fault it in one
// 4 KiB page at a time: (4, 512, 4096) fp32 forward takes 9 ms with small pages and 3 with huge
// ones.
constexpr int64_t kHugePage = int64_t{2} << 20;
constexpr int64_t kAdviseFrom = 2 * kHugePage;

// Whether this is a virtual machine whose balloon (virtio device 5) reports free pages (feature 5).
// Its host takes huge pages away as soon as they are free and gives them back 4 KiB at a time:
// (4, 2048, 4096) fp32 forward takes 172 ms with huge pages there, 31 ms without
// (results/cpu/huge_pages-2026-11-22.txt).
bool host_takes_free_pages() {
  constexpr int kMostDevices = 64;
  for (int i = 0; i < kMostDevices; ++i) {
    const std::string folder = "/sys/bus/virtio/devices/virtio" + std::to_string(i);
    std::string device, features;
    std::ifstream(folder + "/device") >> device;
    std::ifstream(folder + "/features") >> features;
    if (device == "0x0005" && features.size() > 5 && features[5] == '1') return true;
  }
  return false;
}

void advise_huge_pages(void* data, int64_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes < kAdviseFrom) return;
  static const bool futile = host_takes_free_pages();
  if (futile) return;
  const auto first = (reinterpret_cast<uintptr_t>(data) + kHugePage - 1) & ~(kHugePage - 1);
  const auto last = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kHugePage - 1);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

bool has_nan(ScalarType type) {
  switch (type) {
    case ScalarType::Bool:
    case ScalarType::Byte:
    case ScalarType::Char:
    case ScalarType::Short:
    case ScalarType::Int:
    case ScalarType::Long:
    case ScalarType::UInt16:
    case ScalarType::UInt32:
    case ScalarType::UInt64:
      return false;
    default:
      return true;
  }
}

}  // namespace

void copy_on_cuda_by(bool (*copied)(const Tensor&, const Tensor&)) { copied_on_cuda = copied; }
void copy_into(Tensor& to, const Tensor& from) {
  copies.fetch_add(1, std::memory_order_relaxed);
  const auto on = [type = device_of(to).type](DeviceType t) {
    return type == static_cast<int32_t>(t);
  };
  const bool own = (on(DeviceType::CPU) && copied_on_cpu(to, from)) ||
                   (on(DeviceType::CUDA) && copied_on_cuda && copied_on_cuda(to, from));
  if (!own) {
    torch::stable::copy_(to, from);
    return;
  }
  const int64_t bytes = from.numel() * static_cast<int64_t>(from.element_size());
  own_bytes.fetch_add(bytes, std::memory_order_relaxed);
}
Tensor prepared(const Tensor& fresh) {
  if (device_of(fresh).type == static_cast<int32_t>(DeviceType::CPU)) {
    const int64_t bytes = fresh.numel() * static_cast<int64_t>(fresh.element_size());
    advise_huge_pages(fresh.mutable_data_ptr(), bytes);
  }
  if (fill.load(std::memory_order_relaxed)) {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    torch::stable::fill_(fresh, has_nan(fresh.scalar_type()) ? kNan : -1);
  }
  return fresh;
}

}  // namespace fuseline

FUSELINE_EXPORT int64_t fuseline_copies() { return fuseline::copies.load(); }
FUSELINE_EXPORT int64_t fuseline_copied_bytes() { return fuseline::own_bytes.load(); }
FUSELINE_EXPORT void fuseline_debug_fill(bool on) { fuseline::fill.store(on); }
FUSELINE_EXPORT const char* fuseline_build_info() { return FUSELINE_BUILD_INFO; }
