# judged: right
# device: cuda
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def gelu(x, y, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    v = tl.load(x + at, at < n)
    tl.store(y + at, v * 0.5 * (1 + tl.math.erf(v * 0.7071067811865476)), at < n)


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x):
        hidden = self.up(x)
        out = torch.empty_like(hidden)
        gelu[(triton.cdiv(hidden.numel(), 1024),)](hidden, out, hidden.numel(), 1024)
        return self.down(out)
