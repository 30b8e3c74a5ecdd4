// Launches of the backward as nvcc compiles them for the host, without a GPU: each is to return an
// error. In a device function that the host calls from a generic lambda the process ends instead,
// which nvcc does not say.
#include "fuseline/cuda/norm/rms_cuda_launch.cuh"

using namespace fuseline::rms;

template <Kind KIND>
bool is_refused(int64_t n) {
  float nowhere[4];
  BwdProblem p{};
  p.dy = p.x = p.weight = p.mean = p.rstd = p.dx = p.dweight = p.partial = nowhere;
  p.rows = p.sms = 2;
  p.n = p.dy_stride = p.x_stride = n;
  p.weight_type = WeightType::kSame;
  p.parts = bwd_parts<float, KIND>(p);
  return launch_bwd<float, KIND>(p) != cudaSuccess;
}

int main() {
  for (const int64_t n : {61, 1024, 20000, 20001}) {
    if (!is_refused<Kind::kPlain>(n) || !is_refused<Kind::kCentred>(n)) return 2;
  }
  return 0;
}
