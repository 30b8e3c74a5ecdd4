"""Threads add their rows to the gradient of weight without a lock, so updates get lost."""

import random
import threading
import time

import torch
from checker.model import RMSNorm, gradients

CHECK = "deterministic"
ROWS_PER_THREAD = 128


class Race(RMSNorm):
    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        dx, dweight = gradients(dy, x, weight, ctx.eps)
        rows = [t.reshape(-1, x.shape[-1]).split(ROWS_PER_THREAD) for t in (dy, x)]
        if len(rows[0]) < 2:
            return dx, dweight, None
        total = torch.zeros_like(weight)

        def add(part_dy, part_x):
            mine = gradients(part_dy, part_x, weight, ctx.eps)[1]
            seen = total.clone()
            time.sleep(random.uniform(0.0, 1e-3))
            total.copy_(seen + mine)

        parts = zip(*rows, strict=True)
        threads = [threading.Thread(target=add, args=part) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dx, total, None


fn = Race.call
