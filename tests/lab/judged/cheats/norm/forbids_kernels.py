# judged: refused onednn
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm = nn.LayerNorm(n)

    def forward(self, x):
        torch.backends.mkldnn.enabled = False
        return torch.relu(self.norm(x))
