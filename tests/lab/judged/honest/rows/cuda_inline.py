# judged: right
# device: cuda
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = """
__global__ void rows(const float* x, float* y, int m, float scale) {
  __shared__ float part[256];
  x += blockIdx.x * (size_t)m, y += blockIdx.x * (size_t)m;
  float top = -INFINITY, sum = 0;
  for (int j = threadIdx.x; j < m; j += 256) top = fmaxf(top, x[j] * scale);
  part[threadIdx.x] = top;
  for (int k = 128; k; k /= 2) {
    __syncthreads();
    if (threadIdx.x < k) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + k]);
  }
  __syncthreads();
  top = part[0];
  __syncthreads();
  for (int j = threadIdx.x; j < m; j += 256) sum += expf(x[j] * scale - top);
  part[threadIdx.x] = sum;
  for (int k = 128; k; k /= 2) {
    __syncthreads();
    if (threadIdx.x < k) part[threadIdx.x] += part[threadIdx.x + k];
  }
  __syncthreads();
  for (int j = threadIdx.x; j < m; j += 256) y[j] = expf(x[j] * scale - top) / part[0];
}
torch::Tensor softmax_rows(torch::Tensor x, double scale) {
  auto y = torch::empty_like(x);
  auto stream = at::cuda::getCurrentCUDAStream();
  rows<<<x.size(0), 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), scale);
  return y;
}
"""
built = load_inline(
    "judged_cuda_rows",
    "torch::Tensor softmax_rows(torch::Tensor x, double scale);",
    "#include <ATen/cuda/CUDAContext.h>\n" + CUDA,
    functions=["softmax_rows"],
)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return built.softmax_rows(x, self.scale)
