"""The seed's attention_pytorch: two matrix products around a causal softmax."""

import math

import torch

SIZES = (64, 96)


def inputs(size, device):
    return tuple(torch.randn(2, size, 4, 32, device=device) for _ in range(3))


def attention_pytorch(q, k, v, dropout_p=0.0, causal=True):
    batch_size, seqlen, nheads, d = q.shape
    q = torch.permute(q, (0, 2, 1, 3)).reshape(-1, seqlen, d)
    k = torch.permute(k, (0, 2, 3, 1)).reshape(-1, d, seqlen)
    v = torch.permute(v, (0, 2, 1, 3)).reshape(-1, seqlen, d)
    softmax_scale = 1.0 / math.sqrt(d)
    # Preallocate for baddbmm, which does not read it: beta is 0.
    scores = torch.empty(batch_size * nheads, seqlen, seqlen, dtype=q.dtype, device=q.device)
    scores = torch.baddbmm(scores, q, k, beta=0, alpha=softmax_scale)
    if causal:
        mask = torch.triu(torch.full((seqlen, seqlen), -10000.0, device=scores.device), 1)
        scores = scores + mask.to(dtype=scores.dtype)
    attention = torch.softmax(scores, dim=-1)
    attention_drop = torch.nn.functional.dropout(attention, dropout_p)
    output = torch.bmm(attention_drop, v).reshape(batch_size, nheads, -1, d)
    return output.to(dtype=q.dtype)
