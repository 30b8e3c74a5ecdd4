// How operators of row_cuda.cuh are launched: as on a GPU, or by kernels that only one with
// clusters is given.
#pragma once

#include "emulator.h"
#include "fuseline/cuda/launch/row_launch.cuh"

namespace {

using namespace fuseline;

// As it is launched on a GPU.
struct Usual {
  template <typename Op>
  static void launch(const rows::ArgsOf<Op>& a, const Op& op) {
    rows::launch(a, op, nullptr);
  }
};

// The same of rows of which every third element is given.
struct InSteps {
  template <typename Op>
  static void launch(rows::ArgsOf<Op> a, const Op& op) {
    a.gap[0] = 2;
    rows::launch(a, op, nullptr);
  }
};

// By the kernels of clusters, of one block here.
struct ByCluster {
  template <typename Op>
  static void launch(const rows::ArgsOf<Op>& a, const Op& op) {
    constexpr int VEC = kVec<typename Op::T>, THREADS = 256;
    using Odd = rows::Shape<VEC, 32 / VEC, true, THREADS, 1, false, false>;
    const int slice = static_cast<int>(ceil_div(a.n, VEC) * VEC);
    const auto kernel = rows::row_cluster_kernel<Op, Odd>;
    emulator::on(kernel, static_cast<unsigned>(a.rows), THREADS, 0, nullptr)(a, op, slice);
  }
};
struct ByLong {
  template <typename Op>
  static void launch(const rows::ArgsOf<Op>& a, const Op& op) {
    using T = typename Op::T;
    constexpr int VEC = kVec<T>, THREADS = 128;
    const int slice = static_cast<int>(ceil_div(a.n, VEC) * VEC), pitch = smem_bytes_for<T>(slice);
    const auto kernel = rows::row_long_kernel<typename Op::Again, VEC, false, THREADS>;
    emulator::on(kernel, static_cast<unsigned>(a.rows), THREADS, pitch * Op::INPUTS, nullptr)(
        a, op.again(), {1, 1, slice, pitch});
  }
};

// Short rows, of which a block has many times as many as its threads work on at once.
struct ByTiny {
  template <typename Op>
  static void launch(const rows::ArgsOf<Op>& a, const Op& op) {
    rows::launch_tiny(a, op, nullptr, 1);
  }
};

}  // namespace
