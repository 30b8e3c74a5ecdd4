# judged: right
import torch
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x):
        hidden = torch.addmm(self.up.bias, x, self.up.weight.t())
        return torch.addmm(self.down.bias, F.gelu(hidden), self.down.weight.t())
