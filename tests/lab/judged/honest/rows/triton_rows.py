# judged: right
# device: cuda
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rows(x, y, m, scale, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    place = tl.program_id(0) * m + at
    row = tl.load(x + place, at < m, -float("inf")) * scale
    row = tl.exp(row - tl.max(row))
    tl.store(y + place, row / tl.sum(row), at < m)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = torch.empty_like(x)
        n, m = x.shape
        rows[(n,)](x, y, m, self.scale, triton.next_power_of_2(m))
        return y
