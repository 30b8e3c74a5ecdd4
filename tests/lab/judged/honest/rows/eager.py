# judged: right
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        y = x.mul(self.scale)
        return y.sub_(torch.logsumexp(y, -1, keepdim=True)).exp_()
