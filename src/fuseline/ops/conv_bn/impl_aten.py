"""conv_bn in training by torch's kernels, one after another."""

from __future__ import annotations

import torch
from torch import Tensor

from fuseline.core.convolutions import geometry
from fuseline.core.convolutions.convolution import Call
from fuseline.primitives.rms import statistics_dtype
from fuseline.primitives.triton import Wrap


def fwd(
    call: Call,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    eps: float,
    relu: bool,
    wrap: Wrap | None = None,
) -> tuple[Tensor, ...]:
    """Return y, mean, var, h and rstd."""
    h = geometry.placed(call.convolved(), call.form)
    wide = statistics_dtype(h)
    # Torch's running statistics, moved all the way, are those of the batch.
    mean, var = (h.new_zeros(h.shape[1], dtype=wide) for _ in range(2))
    norm = (t if t is None else t.to(wide).contiguous() for t in (bn_weight, bn_bias))
    y, _, rstd = torch.ops.aten.native_batch_norm.default(h, *norm, mean, var, True, 1.0, eps)
    y = y.relu_() if relu else y
    return geometry.placed(y, call.form), mean, var, h, rstd


def bwd(
    call: Call,
    dy: Tensor,
    y: Tensor | None,
    bn_weight: Tensor | None,
    bn_bias: Tensor | None,
    h: Tensor,
    mean: Tensor,
    rstd: Tensor,
    relu: bool,
    needs: tuple[bool, ...],
    wrap: Wrap | None = None,
) -> tuple[Tensor | None, tuple[Tensor, Tensor]]:
    """Return the gradients of h, if weight or x needs one, and of bn_weight and bn_bias."""
    g = torch.ops.aten.threshold_backward.default(dy, y, 0) if relu else dy
    # Of images in two formats it sums up in their dtype. It reads vectors as if contiguous.
    wide = None if bn_weight is None else bn_weight.to(rstd.dtype).contiguous()
    dh, *dnorm = torch.ops.aten.native_batch_norm_backward.default(
        geometry.placed(g, call.form), geometry.placed(h, call.form), wide,
        None, None, mean.contiguous(), rstd.contiguous(), True, 0.0, [any(needs[:2]), *needs[2:]],
    )  # fmt: skip
    dweight, dbias = dnorm
    if needs[3] and g.is_cuda and g.dtype != rstd.dtype:  # torch's has the digits of half types
        dbias = g.sum((0, *range(2, g.dim())), dtype=rstd.dtype)
    return dh, (dweight, dbias)
