# judged: right
import torch
from torch import nn


@torch.jit.script
def gelu(x: torch.Tensor):
    return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x):
        return self.down(gelu(self.up(x)))
