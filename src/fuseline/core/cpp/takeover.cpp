// Registers our kernels over ATen's at run time, and gives ATen's back.
#include "takeover.h"

#include <algorithm>
#include <mutex>

#define FUSELINE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fuseline {
namespace {

std::vector<Takeover*>& takeovers() {
  static std::vector<Takeover*> known;
  return known;
}

Takeover* find(const std::string& op, const std::string& key) {
  const auto& known = takeovers();
  const auto found = std::find_if(known.begin(), known.end(),
                                  [&](const Takeover* t) { return t->op == op && t->key == key; });
  return found == known.end() ? nullptr : *found;
}

// An operator rather than a C function: called by torch, its warning that a kernel is overridden
// becomes one of Python's, which the caller can silence. One thread at a time: two would register
// twice, and free one registration twice.
void take_over(std::string op, std::string key, bool on) {
  static std::mutex mutex;
  Takeover* takeover = find(op, key);
  STD_TORCH_CHECK(takeover, "_take_over: op is '", op, "' and key is '", key,
                  "', expected a pair that this binary serves");
  const std::lock_guard<std::mutex> lock(mutex);
  on ? takeover->begin() : takeover->end();
}

}  // namespace

Takeover::Takeover(const char* op, const char* key, std::vector<StandIn> kernels)
    : op(op), key(key), kernels(std::move(kernels)) {
  takeovers().push_back(this);
}

TorchLibraryHandle Takeover::add(bool stays) const {
  TorchLibraryHandle library = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(
      aoti_torch_library_init_impl("aten", key.c_str(), __FILE__, __LINE__, &library));
  for (const StandIn& k : kernels) {
    if (k.stays != stays) continue;
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_library_impl(library, k.name, k.kernel));
  }
  return library;
}

void Takeover::begin() {
  if (!stays_) stays_ = add(true);
  if (!on_) on_ = add(false);
}

void Takeover::end() {
  if (!on_) return;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_delete_library_object(on_));
  on_ = nullptr;
}

}  // namespace fuseline

// Calls that the stand-in for aten::<name> has served; -1 where there is none.
FUSELINE_EXPORT int64_t fuseline_served(const char* op, const char* key, const char* name) {
  const fuseline::Takeover* takeover = fuseline::find(op, key);
  if (!takeover) return -1;
  for (const fuseline::StandIn& k : takeover->kernels) {
    if (std::string(k.name) == name) return k.calls->load();
  }
  return -1;
}

STABLE_TORCH_LIBRARY_FRAGMENT(fuseline, m) { m.def("_take_over(str op, str key, bool on) -> ()"); }
STABLE_TORCH_LIBRARY_IMPL(fuseline, CompositeImplicitAutograd, m) {
  m.impl("_take_over", TORCH_BOX(&fuseline::take_over));
}
