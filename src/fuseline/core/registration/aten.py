"""Torch's own kernels as an implementation of ours: `aten`.

They are bound when this package is imported, so that they stay torch's while fuseline.enable() has
put our kernels in their place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from fuseline.core.registration import contract, overrides

NAME = "aten"
DEVICES = ("cpu", "cuda")
_EPS = torch.finfo(torch.float32)
_GONE = "has been invalidated"


class Kernel:
    """Torch's kernel of an operator on each kind of device; `missing` says why there is none."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        found = {device: contract.kernel_below(schema, device) for device in DEVICES}
        self._calls = {d: call for d, call in found.items() if not isinstance(call, str)}
        self.missing = {d: why for d, why in found.items() if isinstance(why, str)}

    def __call__(self, first: Tensor, *args: Any) -> Any:
        """Run it on the device of the first argument, on tensors without the negative bit."""
        plain = [a.resolve_neg() if isinstance(a, Tensor) else a for a in (first, *args)]
        try:
            return self._calls[first.device.type](*plain)
        except RuntimeError as error:
            if _GONE not in str(error):
                raise
        return self._bound_again(first.device.type)(*plain)

    def _bound_again(self, device: str) -> Callable[..., Any]:
        """Return the kernel that torch has now: its registry took back the one that was bound."""
        name = self._schema.partition("(")[0].removeprefix("aten::")
        if overrides.is_ours(name, device):
            raise RuntimeError(
                f'impl="aten": torch has registered another kernel of aten::{name} on {device} '
                "since fuseline was imported, and fuseline's is over it; call fuseline.disable(), "
                "then this once"
            )
        found = contract.kernel_below(self._schema, device)
        if isinstance(found, str):
            raise RuntimeError(f'impl="aten" cannot run here any more: {found}')
        self._calls[device] = found
        return found


def bind(schemas: Mapping[str, str]) -> tuple[Kernel, ...]:
    """Return the kernels of operators by their schemas."""
    return tuple(Kernel(schema) for schema in schemas.values())


def lost(x: Tensor, eps: float) -> str | None:
    """Return why torch's norms, which take eps in float32, do not serve one, or None."""
    if x.dtype == torch.float64 or not (0.0 < eps < _EPS.tiny or _EPS.max < eps < math.inf):
        return None
    least, most = f"at least {_EPS.tiny:.3g}", f"at most {_EPS.max:.3g}"
    return f"eps is {eps}, expected 0 or {least} and {most}, as float32 keeps it"


def provider(
    kernels: contract.Kernels,
    bound: tuple[Kernel, ...],
    unsupported: Callable[..., str | None] | None = None,
) -> contract.Provider:
    """Return the implementation, which runs where torch has each of the kernels."""

    def unavailable(device_type: str) -> str | None:
        if device_type not in DEVICES:
            return f"it needs x on cpu or cuda, got {device_type}"
        return next((k.missing[device_type] for k in bound if device_type in k.missing), None)

    return contract.Provider(NAME, kernels, unavailable, unsupported)
