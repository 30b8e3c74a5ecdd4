"""Our attention behind torch's: "fuseline" in the registry of torch.nn.attention.

After torch.nn.attention.activate_flash_attention_impl("fuseline") the ATen operators of
FlashAttention, which F.scaled_dot_product_attention calls, run on the kernels of
fuseline.attention, forward and backward, which are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fuseline.core.registration import contract
from fuseline.core.selection.select import Parts, Selector
from fuseline.ops.attention.op import SELECTOR as DENSE
from fuseline.ops.attention_varlen.op import SELECTOR as PACKED

NAME = "fuseline"


class Handle:
    """What the registry keeps while ours are active."""

    def __init__(self) -> None:
        self._library = contract.stand_in(_KERNELS, "CUDA")

    def remove(self) -> None:
        """Give torch's kernels back."""
        self._library._destroy()


def register() -> None:
    """Make the name known to torch.nn.attention, in versions that have a registry."""
    if hasattr(torch.nn.attention, "register_flash_attention_impl"):
        torch.nn.attention.register_flash_attention_impl(NAME, register_fn=Handle)


def _parts(selector: Selector, q: Tensor) -> Parts:
    reason = selector.unavailable("triton", q.device.type)
    parts = selector.choice("triton").eager
    if reason or parts is None:
        raise RuntimeError(f"{NAME}: attention cannot run here: {reason}")
    return parts


def _sdpa_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: float | None = None,
) -> tuple[Any, ...]:
    """Return what aten::_scaled_dot_product_flash_attention does; tensors are (B, H, S, D)."""
    _refuse(return_debug_mask=return_debug_mask)
    seed = _drawn(query, dropout_p)
    how = _how(query.shape[2], key.shape[2], is_causal, scale, None, None, dropout_p, seed)
    out, lse = _parts(DENSE, query).fwd(query, key, value, None, *how)
    state, unused, mask = _rest(query, seed)
    return out, lse, None, None, query.shape[2], key.shape[2], state, unused, mask


def _sdpa_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what aten::_scaled_dot_product_flash_attention_backward does."""
    seed = _seed_of(philox_seed, dropout_p)
    how = _how(query.shape[2], key.shape[2], is_causal, scale, None, None, dropout_p, seed)
    saved = (grad_out, out, logsumexp)
    dq, dk, dv, _ = _parts(DENSE, query).bwd(*saved, query, key, value, None, *how, False)
    return dq, dk, dv


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
    **others: Any,
) -> tuple[Any, ...]:
    """Return what aten::_flash_attention_forward does; tensors are (B, S, H, D), or (rows, H, D) of
    packed sequences.
    """
    _refuse(return_debug_mask=return_debug_mask, **others)
    seed = _drawn(query, dropout_p)
    how = (is_causal, scale, window_size_left, window_size_right, dropout_p, seed)
    if cum_seq_q is None or cum_seq_k is None:
        three = [t.transpose(1, 2) for t in (query, key, value)]
        options = _how(query.shape[1], key.shape[1], *how)
        out, lse = _parts(DENSE, query).fwd(*three, None, *options)
        out = out.transpose(1, 2)
    else:
        lengths = (cum_seq_q, cum_seq_k, max_q, max_k)
        options = _packed_how(cum_seq_q, cum_seq_k, *how)
        out, lse = _parts(PACKED, query).fwd(query, key, value, *lengths, *options)
    return out, lse, *_rest(query, seed)


def _backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor | None,
    cum_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: float | None = None,
    window_size_left: int | None = None,
    window_size_right: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what aten::_flash_attention_backward does."""
    seed = _seed_of(rng_state, dropout_p)
    how = (is_causal, scale, window_size_left, window_size_right, dropout_p, seed)
    if cum_seq_q is None or cum_seq_k is None:
        five = [t.transpose(1, 2) for t in (grad_out, out, query, key, value)]
        options = _how(query.shape[1], key.shape[1], *how)
        grads = _parts(DENSE, query).bwd(*five[:2], logsumexp, *five[2:], None, *options, False)
        dq, dk, dv = (t.transpose(1, 2) for t in grads[:3])
    else:
        lengths = (cum_seq_q, cum_seq_k, max_q, max_k)
        options = _packed_how(cum_seq_q, cum_seq_k, *how)
        saved = (grad_out, out, logsumexp)
        dq, dk, dv = _parts(PACKED, query).bwd(*saved, query, key, value, *lengths, *options)
    return dq, dk, dv


_KERNELS: dict[str, Callable[..., Any]] = {
    "_scaled_dot_product_flash_attention": _sdpa_forward,
    "_scaled_dot_product_flash_attention_backward": _sdpa_backward,
    "_flash_attention_forward": _forward,
    "_flash_attention_backward": _backward,
}


def _how(
    queries: int,
    keys: int,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Any, ...]:
    """Return the operator's arguments after the mask.

    FlashAttention aligns the last query with the last key; ours aligns the first ones.
    """
    right = 0 if causal else right
    bounds = (_bound(left, queries - keys), _bound(right, keys - queries))
    return False, scale, *bounds, dropout, None, seed, True


def _bound(bound: int | None, moved: int) -> int:
    """Return a window's bound where the first query is aligned with the first key."""
    if bound is None or bound < 0:
        return -1
    if bound + moved < 0:
        raise RuntimeError(
            f"{NAME}: a window's bound is {bound}, expected at least {-moved}, the queries or keys "
            "by which the last ones are further apart than the first"
        )
    return bound + moved


def _packed_how(
    cu_q: Tensor,
    cu_k: Tensor,
    causal: bool,
    scale: float | None,
    left: int | None,
    right: int | None,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Any, ...]:
    """Return the same for packed sequences, whose lengths must not matter."""
    bounded = causal or any(n is not None and n >= 0 for n in (left, right))
    if bounded and not cu_q.is_set_to(cu_k):
        raise RuntimeError(
            f"{NAME}: cum_seq_k is another tensor than cum_seq_q, expected the same one with a "
            "window or causal: the last query would have to be aligned with the last key"
        )
    return _how(0, 0, causal, scale, left, right, dropout, seed)


def _refuse(**unserved: Any) -> None:
    """Raise for arguments of the ATen operators that our kernels do not have."""
    for name, value in unserved.items():
        if value is not None and value is not False and name != "num_splits":
            raise RuntimeError(f"{NAME}: {name} is {value!r}, expected None or False")


def _drawn(q: Tensor, dropout: float) -> Tensor | None:
    """Return a seed from the device's generator, where something is dropped."""
    if dropout <= 0.0:
        return None
    return torch.randint(2**63 - 1, (), dtype=torch.int64, device=q.device)


def _rest(q: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return what FlashAttention returns for its backward, and a mask that nobody asked for."""
    state = q.new_empty((2,), dtype=torch.int64)
    if seed is not None:
        state[0] = seed
    unused = q.new_empty((), dtype=torch.uint64)
    return state.view(torch.uint64), unused, q.new_empty((0,))


def _seed_of(state: Tensor, dropout: float) -> Tensor | None:
    return state.view(torch.int64)[0].clone() if dropout > 0.0 else None
