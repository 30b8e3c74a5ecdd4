# judged: right native
import torch.nn.functional as F
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))
