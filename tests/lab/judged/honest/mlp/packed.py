# judged: right
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        up, down = nn.Linear(n, hidden), nn.Linear(hidden, n)
        self.up, self.down = (nn.Parameter(m.weight.t().contiguous()) for m in (up, down))
        self.first, self.second = up.bias, down.bias

    def forward(self, x):
        return F.gelu(x @ self.up + self.first) @ self.down + self.second
