// Kernels of known length, traffic or work, for the lab's tests of itself: fuselab::*.
#include <algorithm>

#include "fuseline/core/cpp/cuda.h"

namespace fuselab {
namespace {

using fuseline::Device;
using fuseline::DeviceScope;
using fuseline::ScalarType;
using fuseline::Tensor;

constexpr int kThreads = 256;
constexpr int kMaxPacks = 4;  // 16-byte loads in flight of each thread and source
constexpr int kBlocksAnSm = 8;
constexpr int kChains = 8;
constexpr int kSteps = 32;
constexpr int kStages = 4;
constexpr int64_t kBulkBytes = 16 << 10;

__device__ __forceinline__ int64_t nanoseconds() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void busy_kernel(int64_t* out, int64_t ns) {
  const int64_t begin = nanoseconds();
  int64_t passed = 0;
  while (passed < ns) passed = nanoseconds() - begin;
  *out = passed;
}

__device__ __forceinline__ float4 operator+(float4 a, float4 b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
}

struct Sources {
  const float4* row[3];
};

// out = the sum of READS sources; without WRITE the sum is only compared with what it never is.
template <int READS, bool WRITE, int PACKS>
__global__ void __launch_bounds__(kThreads) stream_kernel(Sources from, float4* out, int64_t n) {
  const int64_t first = int64_t{blockIdx.x} * kThreads * PACKS + threadIdx.x;
  float4 sum[PACKS];
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    const int64_t i = first + p * kThreads;
    if (i >= n) break;
    sum[p] = __ldcs(from.row[0] + i);
#pragma unroll
    for (int r = 1; r < READS; ++r) sum[p] = sum[p] + __ldcs(from.row[r] + i);
  }
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    const int64_t i = first + p * kThreads;
    if (i >= n) break;
    if (WRITE) {
      __stcs(out + i, sum[p]);
    } else if (sum[p].x == -1.17e-38f && sum[p].y == -1.17e-38f) {
      *out = sum[p];
    }
  }
}

__global__ void __launch_bounds__(kThreads) fma_kernel(float* out, int64_t rounds, float scale) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  float chain[kChains];
#pragma unroll
  for (int c = 0; c < kChains; ++c) chain[c] = static_cast<float>(i + c);
#pragma unroll 1
  for (int64_t round = 0; round < rounds; ++round) {
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
#pragma unroll
      for (int c = 0; c < kChains; ++c) chain[c] = fmaf(chain[c], scale, 1.0f);
    }
  }
  float sum = 0;
#pragma unroll
  for (int c = 0; c < kChains; ++c) sum += chain[c];
  out[i] = sum;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void bulk_load(char* into, const char* from, uint32_t bytes,
                                          uint64_t* full) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)),
               "r"(bytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(into)),
      "l"(from), "r"(bytes), "r"(shared_address(full))
      : "memory");
}

__device__ __forceinline__ void wait_until_full(uint64_t* full, uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(full)),
      "r"(phase)
      : "memory");
}

// One thread a block keeps kStages pieces moving through shared memory; no register holds data.
__global__ void bulk_copy_kernel(const char* from, char* out, int64_t bytes) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) char stages[];
  __shared__ uint64_t full[kStages];
  for (auto& barrier : full) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
  }
  asm volatile("fence.proxy.async.shared::cta;");
  const int64_t pieces = (bytes + kBulkBytes - 1) / kBulkBytes;
  const auto size = [&](int64_t piece) {
    return static_cast<uint32_t>(min(kBulkBytes, bytes - piece * kBulkBytes));
  };
  const auto load = [&](int64_t turn) {
    const int64_t piece = blockIdx.x + turn * gridDim.x;
    if (piece >= pieces) return;
    const int stage = turn % kStages;
    bulk_load(stages + stage * kBulkBytes, from + piece * kBulkBytes, size(piece), full + stage);
  };
  for (int64_t turn = 0; turn < kStages; ++turn) load(turn);
  for (int64_t turn = 0; blockIdx.x + turn * gridDim.x < pieces; ++turn) {
    const int64_t piece = blockIdx.x + turn * gridDim.x;
    const int stage = turn % kStages;
    wait_until_full(full + stage, turn / kStages % 2);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     out + piece * kBulkBytes),
                 "r"(shared_address(stages + stage * kBulkBytes)), "r"(size(piece))
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    load(turn + kStages);
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

int64_t blocks(int64_t work, int64_t share) { return (work + share - 1) / share; }

void check_rows(const Tensor& out, std::initializer_list<const Tensor*> sources) {
  for (const Tensor* t : sources) {
    STD_TORCH_CHECK(t->scalar_type() == ScalarType::Float && t->is_contiguous(),
                    "sources: expected contiguous float32");
    STD_TORCH_CHECK(t->numel() == (*sources.begin())->numel() && t->numel() % 4 == 0,
                    "sources: expected equal numbers of elements, a multiple of 4");
    STD_TORCH_CHECK(reinterpret_cast<uintptr_t>(t->const_data_ptr()) % 16 == 0,
                    "sources: expected 16-byte alignment");
  }
  STD_TORCH_CHECK(out.scalar_type() == ScalarType::Float && out.is_contiguous() &&
                      reinterpret_cast<uintptr_t>(out.const_data_ptr()) % 16 == 0,
                  "out: expected contiguous, 16-byte aligned float32");
}

// Fewer loads a thread where there would else be too few blocks for all multiprocessors.
template <int READS, bool WRITE, int PACKS>
void launch_stream(const Sources& from, float4* out, int64_t n, int sms, cudaStream_t on) {
  if constexpr (PACKS > 1) {
    if (blocks(n, kThreads * PACKS) < int64_t{kBlocksAnSm} * sms) {
      return launch_stream<READS, WRITE, PACKS / 2>(from, out, n, sms, on);
    }
  }
  stream_kernel<READS, WRITE, PACKS>
      <<<blocks(n, kThreads * PACKS), kThreads, 0, on>>>(from, out, n);
  FUSELINE_CUDA_CHECK(cudaGetLastError());
}

template <int READS, bool WRITE>
void stream(std::initializer_list<const Tensor*> sources, Tensor out) {
  check_rows(out, sources);
  const int64_t n = (*sources.begin())->numel() / 4;
  STD_TORCH_CHECK(out.numel() == (WRITE ? n * 4 : 4), "out: got ", out.numel(), " elements");
  if (n == 0) return;
  const Device device = fuseline::device_of(out);
  const DeviceScope scope(device.index);
  Sources from{};
  int r = 0;
  for (const Tensor* t : sources) from.row[r++] = static_cast<const float4*>(t->const_data_ptr());
  launch_stream<READS, WRITE, kMaxPacks>(from, static_cast<float4*>(out.mutable_data_ptr()), n,
                                         fuseline::sm_count(device.index),
                                         fuseline::current_stream(device.index));
}

void read(const Tensor& a, Tensor out) { stream<1, false>({&a}, out); }
void copy(const Tensor& a, Tensor out) { stream<1, true>({&a}, out); }
void add(const Tensor& a, const Tensor& b, Tensor out) { stream<2, true>({&a, &b}, out); }
void add3(const Tensor& a, const Tensor& b, const Tensor& c, Tensor out) {
  stream<3, true>({&a, &b, &c}, out);
}

void bulk_copy(const Tensor& a, Tensor out) {
  check_rows(out, {&a});
  STD_TORCH_CHECK(out.numel() == a.numel(), "out: got ", out.numel(), " elements, expected ",
                  a.numel());
  if (a.numel() == 0) return;
  const Device device = fuseline::device_of(out);
  const DeviceScope scope(device.index);
  int major = 0;
  FUSELINE_CUDA_CHECK(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  STD_TORCH_CHECK(major >= 9, "bulk copies need compute capability 9.0, this GPU has ", major);
  constexpr int kShared = kStages * kBulkBytes;
  FUSELINE_CUDA_CHECK(
      cudaFuncSetAttribute(bulk_copy_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  const int64_t bytes = a.numel() * 4;
  const int64_t grid =
      std::min(blocks(bytes, kBulkBytes), int64_t{3} * fuseline::sm_count(device.index));
  bulk_copy_kernel<<<grid, 1, kShared, fuseline::current_stream(device.index)>>>(
      static_cast<const char*>(a.const_data_ptr()), static_cast<char*>(out.mutable_data_ptr()),
      bytes);
  FUSELINE_CUDA_CHECK(cudaGetLastError());
}

void spin(Tensor out, int64_t ns) {
  STD_TORCH_CHECK(out.scalar_type() == ScalarType::Long && out.numel() == 1,
                  "out: expected one int64");
  const Device device = fuseline::device_of(out);
  const DeviceScope scope(device.index);
  busy_kernel<<<1, 1, 0, fuseline::current_stream(device.index)>>>(
      static_cast<int64_t*>(out.mutable_data_ptr()), ns);
  FUSELINE_CUDA_CHECK(cudaGetLastError());
}

void fma(Tensor out, int64_t rounds) {
  STD_TORCH_CHECK(out.scalar_type() == ScalarType::Float && out.is_contiguous() &&
                      out.numel() > 0 && out.numel() % kThreads == 0,
                  "out: expected contiguous float32, a multiple of ", kThreads, " elements");
  const Device device = fuseline::device_of(out);
  const DeviceScope scope(device.index);
  fma_kernel<<<out.numel() / kThreads, kThreads, 0, fuseline::current_stream(device.index)>>>(
      static_cast<float*>(out.mutable_data_ptr()), rounds, 0.5f);
  FUSELINE_CUDA_CHECK(cudaGetLastError());
}

}  // namespace
}  // namespace fuselab

STABLE_TORCH_LIBRARY_FRAGMENT(fuselab, m) {
  m.def("spin(Tensor(a!) out, int ns) -> ()");
  m.def("read(Tensor a, Tensor(a!) out) -> ()");
  m.def("copy(Tensor a, Tensor(a!) out) -> ()");
  m.def("add(Tensor a, Tensor b, Tensor(a!) out) -> ()");
  m.def("add3(Tensor a, Tensor b, Tensor c, Tensor(a!) out) -> ()");
  m.def("bulk_copy(Tensor a, Tensor(a!) out) -> ()");
  m.def("fma(Tensor(a!) out, int rounds) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(fuselab, CUDA, m) {
  m.impl("spin", TORCH_BOX(&fuselab::spin));
  m.impl("read", TORCH_BOX(&fuselab::read));
  m.impl("copy", TORCH_BOX(&fuselab::copy));
  m.impl("add", TORCH_BOX(&fuselab::add));
  m.impl("add3", TORCH_BOX(&fuselab::add3));
  m.impl("bulk_copy", TORCH_BOX(&fuselab::bulk_copy));
  m.impl("fma", TORCH_BOX(&fuselab::fma));
}
