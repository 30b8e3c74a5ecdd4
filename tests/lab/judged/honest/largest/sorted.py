# judged: right
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, step):
        values, places = torch.topk(x, 1)
        return [values.squeeze(-1) * step, places.squeeze(-1)]
