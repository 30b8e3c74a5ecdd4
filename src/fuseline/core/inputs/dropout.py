"""The arguments that dropout by position has: a probability, and a seed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.compiler import is_compiling

from fuseline.core.inputs import arguments

_transforms_active = torch._C._are_functorch_transforms_active


def seeds(x: Tensor, draws: bool, seed: int | Tensor | None) -> tuple[int | None, Tensor | None]:
    """Return an operator's arguments for a seed: a number, or a tensor that has it.

    Without a seed, where something is drawn, torch's default CPU generator gives one.
    """
    if isinstance(seed, Tensor):
        return None, seed
    if seed is not None or not draws:
        return seed, None
    # A captured graph draws at each replay, a compiled one at each call, vmap as it was told to; a
    # number would be one for all.
    captured = isinstance(x, Tensor) and x.is_cuda and torch.cuda.is_current_stream_capturing()
    if is_compiling() or captured or _transforms_active():
        return None, torch.randint(2**63 - 1, (), device=x.device)
    return int(torch.randint(2**63 - 1, (), device="cpu")), None


def require_draw(
    op: str, x: Tensor, name: str, p: float, seed: int | None, seed_tensor: Tensor | None
) -> None:
    """Refuse a probability (called `name`) or a seed that no implementation takes."""
    p = arguments.require_number(op, name, p)
    if not 0 <= p <= 1:
        raise ValueError(f"{op}: {name} is {p}, expected a probability, 0 to 1")
    if seed is not None and not isinstance(seed, (int, torch.SymInt)):
        raise TypeError(f"{op}: seed is a {type(seed).__name__}, expected an int or None")
    if seed is not None and not -(2**63) <= seed < 2**63:
        raise ValueError(f"{op}: seed is {seed}, expected a signed number of 64 bits")
    if seed_tensor is not None:
        shape = torch.Size(())
        arguments.require_exactly(op, "seed", seed_tensor, shape, torch.int64, x.device)
