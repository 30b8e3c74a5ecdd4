# judged: right
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(n, dtype=torch.bfloat16) + 0.5)

    def forward(self, x):
        return torch.rms_norm(x.float(), x.shape[-1:], self.weight.float(), 1e-6).to(x)
