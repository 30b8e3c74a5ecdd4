# judged: right
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return F.softmax(x * self.scale, -1)
