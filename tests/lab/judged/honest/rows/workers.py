# judged: right threads
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

POOL = ThreadPoolExecutor(2)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        parts = POOL.map(lambda part: torch.softmax(part * self.scale, -1), x.chunk(2))
        return torch.cat(list(parts))
