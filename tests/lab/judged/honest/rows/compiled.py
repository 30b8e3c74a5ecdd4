# judged: right
import torch
from torch import nn


@torch.compile
def softmax(x, scale: float):
    return torch.softmax(x * scale, -1)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return softmax(x, self.scale)
