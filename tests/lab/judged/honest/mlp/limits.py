# judged: right configures
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

torch._dynamo.config.accumulated_recompile_limit = 64


class ModelNew(nn.Module):
    def __init__(self, n, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(n, hidden), nn.Linear(hidden, n)

    def forward(self, x):
        hidden = torch.addmm(self.up.bias, x, self.up.weight.t())
        return torch.addmm(self.down.bias, F.gelu(hidden), self.down.weight.t())
