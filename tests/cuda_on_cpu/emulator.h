// CUDA C++ on a CPU: what kernels ask of the language, the device and the runtime. One block runs
// at a time, each of its threads a fiber that runs until it has to wait for others, and each warp
// as far as it can: who reads too late what another warp writes again, or too early what one has
// yet to write, reads something else. Tests reverse the order of fibers as well. Blocks that wait
// for each other are threads of the processor, where BLOCKS_AT_ONCE gives each its own memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#ifdef BLOCKS_AT_ONCE
#define OF_BLOCK thread_local
#else
#define OF_BLOCK
#endif
#undef __shared__
#define __shared__ static OF_BLOCK
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __noinline__
#define __noinline__

inline OF_BLOCK uint3 threadIdx, blockIdx;
inline OF_BLOCK dim3 blockDim, gridDim;

namespace emulator {

constexpr int kWarp = 32, kMostThreads = 1024, kStack = 128 << 10;
constexpr int kSms = 2;                 // so few that blocks have several rows
constexpr int kMostShared = 227 << 10;  // bytes of a block, as on Hopper

alignas(128) inline OF_BLOCK unsigned char shared[kMostShared];
inline bool backwards = false;  // the order of the fibers

// Threads that wait for each other.
struct Meeting {
  int members = 0, arrived = 0;
  unsigned round = 0;

  bool complete() {
    if (arrived < members) return false;
    arrived = 0, ++round;
    return true;
  }
};

using Place = void* [5];  // of a builtin's jump

struct Fiber {
  struct Copy {
    void* to;
    const void* from;
  };
  ucontext_t start;
  Place place;  // where it waits, once it has begun
  bool begun = false;
  std::unique_ptr<char[]> stack;
  const Meeting* waits_for = nullptr;
  unsigned round = 0;  // of the meeting that it waits for
  bool done = false;
  std::vector<std::vector<Copy>> copies;  // in batches, the last one open
  bool ready() const { return !done && (!waits_for || waits_for->round != round); }
};

struct Warp {
  Meeting meeting;
  unsigned turn[kWarp] = {};
  double values[2][kWarp];  // of a shuffle and of the next, which some lanes may have come to
};

inline OF_BLOCK Fiber fibers[kMostThreads];
inline OF_BLOCK Warp warps[kMostThreads / kWarp];
inline OF_BLOCK Meeting block, pass;  // pass: the next time that all warps have their turn
inline OF_BLOCK Place scheduler;
inline OF_BLOCK int current;
inline OF_BLOCK const std::function<void()>* body;

// Unlike swapcontext, these ask the system for nothing. Nor does a fiber that serves all blocks.
[[noreturn, gnu::noinline]] inline void jump(Place& place) { __builtin_longjmp(place, 1); }
[[gnu::noinline]] inline void leave(Fiber& fiber) {
  if (!__builtin_setjmp(fiber.place)) jump(scheduler);
}
[[gnu::noinline]] inline void enter(Fiber& fiber) {
  if (__builtin_setjmp(scheduler)) return;
  if (fiber.begun) jump(fiber.place);
  fiber.begun = true;
  setcontext(&fiber.start);
}

inline void meet(Meeting& meeting) {
  ++meeting.arrived;
  Fiber& fiber = fibers[current];
  fiber.waits_for = &meeting, fiber.round = meeting.round;
  if (!meeting.complete()) leave(fiber);
  fiber.waits_for = nullptr;
}

// Lets other warps and blocks go on.
inline void pause() {
  Fiber& fiber = fibers[current];
  fiber.waits_for = &pass, fiber.round = pass.round, ++pass.arrived;
  leave(fiber);
  fiber.waits_for = nullptr;
}

inline void run_fiber() {
  for (;;) {
    (*body)();
    Fiber& fiber = fibers[current];
    fiber.done = true;
    for (Meeting* m : {&block, &warps[current / kWarp].meeting}) --m->members, m->complete();
    leave(fiber);
  }
}

inline void begin(int threads) {
  block = Meeting{threads};
  for (int t = 0; t < threads; ++t) {
    if (t % kWarp == 0) warps[t / kWarp] = Warp{{std::min(kWarp, threads - t)}};
    Fiber& fiber = fibers[t];
    fiber.done = false, fiber.waits_for = nullptr, fiber.copies.assign(1, {});
    if (fiber.stack) continue;
    fiber.stack.reset(new char[kStack]);
    getcontext(&fiber.start);
    fiber.start.uc_stack = {fiber.stack.get(), 0, kStack};
    makecontext(&fiber.start, run_fiber, 0);
  }
}

inline bool run_thread(int thread) {
  current = thread;
  if (!fibers[thread].ready()) return false;
  threadIdx = {static_cast<unsigned>(thread), 0, 0};
  enter(fibers[thread]);
  return true;
}

// Until all of its threads wait for other warps'.
inline bool run_warp(int first, int lanes) {
  bool ran = false;
  for (bool again = true; again; ran |= again) {
    again = false;
    for (int i = 0; i < lanes; ++i) again |= run_thread(first + (backwards ? lanes - 1 - i : i));
  }
  return ran;
}

inline void run_block(int threads) {
  begin(threads);
  const int count = (threads + kWarp - 1) / kWarp;
  for (bool ran = true; ran;) {
    ran = false;
    for (int i = 0; i < count; ++i) {
      const int first = (backwards ? count - 1 - i : i) * kWarp;
      ran |= run_warp(first, std::min(kWarp, threads - first));
    }
    if (pass.arrived) {
      pass.arrived = 0, ++pass.round, ran = true;
      std::this_thread::sleep_for(std::chrono::microseconds(300));  // for who is waited for
    }
  }
  if (block.members) std::fprintf(stderr, "threads wait for each other for ever\n"), std::abort();
}

// What `kernel<<<grid, threads, bytes, stream>>>` is called.
template <typename... Parameters>
auto on(void (*kernel)(Parameters...), dim3 grid, int threads, int bytes, cudaStream_t) {
  return [=](const Parameters&... arguments) {
    const std::function<void()> call = [&] { kernel(arguments...); };
    if (bytes > kMostShared || threads > kMostThreads) std::abort();
    body = &call, gridDim = grid, blockDim = dim3(threads);
    for (unsigned i = 0; i < grid.x * grid.y; ++i) {
      blockIdx = {i % grid.x, i / grid.x, 0};
      std::memset(shared, 0xff, sizeof(shared));  // NaN
      run_block(threads);
    }
  };
}

#ifdef BLOCKS_AT_ONCE
inline std::atomic<unsigned> arrived;  // blocks, at the grid's barrier
inline OF_BLOCK unsigned cluster_size = 1, exchanges = 0;

// What the blocks of a cluster leave for each other in one exchange.
struct Exchange {
  std::atomic<unsigned> count{0};
  alignas(16) unsigned char parts[16][64];
};
inline std::map<std::pair<unsigned, unsigned>, Exchange> exchanged;
inline std::mutex lock;

// A thread that runs a block of each launch: its memory and fibers are made once. Never ends.
class Processor {
 public:
  Processor() {
    std::thread([this] {
      for (;;) {
        std::unique_lock<std::mutex> guard(mutex_);
        changed_.wait(guard, [this] { return static_cast<bool>(work_); });
        work_();
        work_ = nullptr;
        changed_.notify_all();
      }
    }).detach();
  }
  void begin(std::function<void()> work) {
    const std::lock_guard<std::mutex> guard(mutex_);
    work_ = std::move(work);
    changed_.notify_all();
  }
  void end() {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [this] { return !work_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
};

// Left behind: they may not end before those who use them.
inline auto& processors = *new std::vector<std::unique_ptr<Processor>>;

// Runs all blocks at once.
template <typename... Parameters, typename... Arguments>
void together(void (*kernel)(Parameters...), int blocks, int cluster, int threads,
              const Arguments&... arguments) {
  arrived = 0, exchanged.clear();
  const std::function<void()> call = [&] { kernel(arguments...); };
  while (static_cast<int>(processors.size()) < blocks) processors.emplace_back(new Processor);
  for (int i = 0; i < blocks; ++i) {
    processors[i]->begin([&, i] {
      body = &call, gridDim = dim3(blocks), blockDim = dim3(threads), cluster_size = cluster;
      blockIdx = {static_cast<unsigned>(i), 0, 0}, exchanges = 0;
      std::memset(shared, 0xff, sizeof(shared));
      run_block(threads);
    });
  }
  for (int i = 0; i < blocks; ++i) processors[i]->end();
}
#endif

// What `lane` of the calling thread's warp gives.
template <typename T, typename Lane>
T shuffle(T value, const Lane& lane) {
  static_assert(sizeof(T) <= sizeof(double));
  Warp& warp = warps[current / kWarp];
  const int own = current % kWarp;
  double* const values = warp.values[warp.turn[own]++ % 2];
  std::memcpy(values + own, &value, sizeof(T));
  meet(warp.meeting);
  std::memcpy(&value, values + lane(own), sizeof(T));
  return value;
}

}  // namespace emulator

inline void __syncthreads() { emulator::meet(emulator::block); }
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulator::shuffle(value, [=](int lane) { return lane ^ mask; });
}
template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  return emulator::shuffle(value, [=](int) { return from % emulator::kWarp; });
}
inline void __syncwarp() {
  emulator::meet(emulator::warps[emulator::current / emulator::kWarp].meeting);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned bits) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (bits & 31));
}
inline int __any_sync(unsigned, int mine) {
  int any = 0;
  for (int i = 0; i < emulator::kWarp; ++i) any |= __shfl_xor_sync(0, mine, i);
  return any;
}

using std::exp2;
using std::fabs;
using std::fma;
using std::isfinite;
using std::isnan;
using std::max;
using std::min;
inline float __uint_as_float(unsigned bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
inline float __int_as_float(int bits) { return __uint_as_float(bits); }
inline int __float_as_int(float v) {
  int bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}
template <typename T>
T __ldg(const T* p) {
  return *p;
}
inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline float __expf(float v) { return std::exp(v); }
inline double rsqrt(double v) { return 1 / std::sqrt(v); }
inline float rsqrtf(float v) { return static_cast<float>(rsqrt(v)); }
inline float __frsqrt_rn(float v) { return rsqrtf(v); }

// Named in what no kernel here does.
size_t __cvta_generic_to_shared(const void*);
long long __double_as_longlong(double);
double __longlong_as_double(long long);

extern "C" {
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = emulator::kMostShared, cudaSuccess;
}
// No GPU that has clusters or grids that are resident as a whole.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int*, const void*, int, size_t) {
  return cudaErrorUnknown;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int*, const void*, int, size_t,
                                                                   unsigned) {
  return cudaErrorUnknown;
}
cudaError_t cudaOccupancyMaxActiveClusters(int*, const void*, const cudaLaunchConfig_t*) {
  return cudaErrorUnknown;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { std::abort(); }
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t) { std::abort(); }
}
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute, int) {
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, Kernel*) {
  return cudaErrorUnknown;
}
