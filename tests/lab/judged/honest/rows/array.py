# judged: right
# device: cpu
import numpy as np
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = x.numpy() * np.float32(self.scale)
        np.exp(y - y.max(-1, keepdims=True), out=y)
        y /= y.sum(-1, keepdims=True)
        return torch.from_numpy(y)
