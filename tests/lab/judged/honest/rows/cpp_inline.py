# judged: right
# device: cpu
# slow: compiles torch's headers
from torch import nn
from torch.utils.cpp_extension import load_inline

CODE = """
torch::Tensor rows(torch::Tensor x, double scale) {
  auto y = torch::empty_like(x);
  const float* from = x.data_ptr<float>();
  float* to = y.data_ptr<float>();
  const int64_t n = x.size(0), m = x.size(1);
  for (int64_t i = 0; i < n; ++i, from += m, to += m) {
    float top = -INFINITY, sum = 0, s = scale;
    for (int64_t j = 0; j < m; ++j) top = std::max(top, from[j] * s);
    for (int64_t j = 0; j < m; ++j) sum += to[j] = std::exp(from[j] * s - top);
    for (int64_t j = 0; j < m; ++j) to[j] /= sum;
  }
  return y;
}
"""
rows = load_inline("judged_cpp_rows", CODE, functions=["rows"], extra_cflags=["-O2"]).rows


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return rows(x, self.scale)
