// Kernels of ours that serve an operator of ATen's, from enable() to disable().
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "tensor.h"

namespace fuseline {

// Stands in for aten::<name> and counts what it serves. `stays`: it is never taken back, because
// ATen has no kernel there and a graph made in the meantime would have no backward.
struct StandIn {
  const char* name;
  void (*kernel)(StableIValue*, uint64_t, uint64_t);
  const std::atomic<int64_t>* calls;
  bool stays = false;
};

// All that serves `op` under one dispatch key ("CPU", "CUDA"); lives as long as the process.
class Takeover {
 public:
  Takeover(const char* op, const char* key, std::vector<StandIn> kernels);
  void begin();
  void end();

  const std::string op, key;
  const std::vector<StandIn> kernels;

 private:
  TorchLibraryHandle add(bool stays) const;

  TorchLibraryHandle on_ = nullptr, stays_ = nullptr;
};

}  // namespace fuseline
