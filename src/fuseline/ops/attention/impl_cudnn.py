"""Attention by cuDNN, through torch's operators."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from fuseline.core.registration import contract
from fuseline.ops.attention.impl_args import HALVES, Call, Grads, in_packs, laid_as, unserved

_LONGEST = 128
_FORWARD, _BACKWARD = (f"_scaled_dot_product_cudnn_attention{end}" for end in ("", "_backward"))


def _forward(c: Call, save: bool) -> Any:
    return torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        c.q, c.k, c.v, None, save, 0.0, c.causal, False, scale=c.factor
    )


def run(*args: Any) -> Tensor:
    """Return out."""
    c = Call(*args)
    return laid_as(_forward(c, False)[0], c.q)


def fwd(*args: Any) -> tuple[Tensor, Tensor]:
    """Return out, in the layout of q, and lse."""
    c = Call(*args)
    out, lse, *_ = _forward(c, True)
    return laid_as(out, c.q), lse.squeeze(-1)


def bwd(dout: Tensor, out: Tensor, lse: Tensor, *args: Any) -> Grads:
    """Return the gradients of q, k and v."""
    c = Call(*args[:-1])
    # It asks for the layout of out, and warns where it copies itself.
    dout = laid_as(dout, out)
    none = c.q.new_empty((), dtype=torch.int64)
    lengths = (None, None, c.q.shape[2], c.k.shape[2])
    dq, dk, dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        dout, c.q, c.k, c.v, out, lse.unsqueeze(-1), none, none, None, *lengths, 0.0, c.causal,
        scale=c.factor,
    )  # fmt: skip
    return laid_as(dq, c.q), laid_as(dk, c.k), laid_as(dv, c.v), c.q.new_empty((0,))


def _unsupported(direction: str, *args: Any) -> str | None:
    c = Call(*args)
    if reason := unserved(c, HALVES, _LONGEST):
        return reason
    if c.mask is not None:
        return (
            "it is given no mask: its gradient of q may be NaN with one "
            "(https://github.com/pytorch/pytorch/issues/196678)"
        )
    if c.q.shape[3] % 8:
        return f"the head dimension is {c.q.shape[3]}, expected a multiple of 8"
    if c.k.shape[2] == 1:
        return "it takes no single key"
    if not in_packs(c.q, c.k, c.v):
        return "rows of q, k or v do not begin at multiples of 16 bytes, or are repeated"
    reason = _wrong_backward(c) if direction == "bwd" else None
    return reason or _too_old(c.q.get_device())


def _wrong_backward(c: Call) -> str | None:
    """Return why its gradients are not what is asked for."""
    queries, keys = c.q.shape[2], c.k.shape[2]
    if c.deterministic:
        return "its sums have no fixed order"
    if queries == 1:
        return (
            "its gradients of k and v may be NaN for one query "
            "(https://github.com/NVIDIA/cudnn-frontend/issues/1072)"
        )
    # It takes the scores of half a tile of keys beyond the last for 0, unless all are hidden.
    if keys % 128 == 64 and not (c.causal and queries <= keys):
        return (
            "its gradient of q may be NaN where keys % 128 is 64 "
            "(https://github.com/pytorch/pytorch/issues/196678, here without a mask)"
        )
    return None


@lru_cache(maxsize=64)
def _too_old(index: int) -> str | None:
    if not torch.cuda.is_available():
        return None
    if torch.cuda.get_device_capability(index) < (8, 0):
        return "it needs compute capability 8.0"
    version = torch.backends.cudnn.version()
    return None if version and version >= 90000 else f"it needs cuDNN 9, torch has {version}"


def _unavailable(device_type: str) -> str | None:
    if device_type != "cuda":
        return f"it needs q on cuda, got {device_type}"
    if torch.version.cuda is None:
        return "torch was built without CUDA"
    missing = [name for name in (_FORWARD, _BACKWARD) if not hasattr(torch.ops.aten, name)]
    return f"torch {torch.__version__} has no aten::{missing[0]}" if missing else None


PROVIDER = contract.Provider(
    "cudnn", contract.Kernels(run, fwd, bwd), _unavailable, _unsupported, by_rule=False
)
