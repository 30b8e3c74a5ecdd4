"""The least time that a call needs: its bytes and its products by what the device was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from fuselab.machine.roofs import Roofs
from fuselab.scan.traces.trace import Array, Event
from fuselab.worker.device.ceiling import mix_of
from fuselab.worker.operators.recorded import Recorded, of_calls
from fuseline import table
from fuseline.core.specs.spec import Cost, Direction

# Of their first tensor they read as much as they write.
_SOME = ("aten::embedding", "aten::index_select", "aten::gather", "aten::index", "aten::take")
# They write without reading what was there.
_OVERWRITE = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_")

# Attention on a CPU, whose products torch's counter does not know.
_UNCOUNTED: Mapping[Any, Any] = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda q, k, v, *rest, **given: sdpa_flop_count(q, k, v)
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda dy, q, k, v, *rest, **given: sdpa_backward_flop_count(dy, q, k, v)
    ),
}


@dataclass(frozen=True)
class Ceiling:
    """The least microseconds of a call, and of what: "bandwidth" or "products"."""

    us: float
    of: str


class Rates:
    """Bytes and FLOPs a second of a device.

    roofs      what `fuselab doctor` measured; None: nothing
    bandwidth  GB/s that stand in where there are no roofs, 0: none
    """

    def __init__(self, roofs: Roofs | None, bandwidth: float = 0.0) -> None:
        self._roofs, self._bandwidth = roofs, bandwidth

    @property
    def known(self) -> bool:
        """Whether anything is."""
        return self._roofs is not None or self._bandwidth > 0

    def ceiling(self, cost: Cost | None, dtype: str) -> Ceiling | None:
        """Return the least time of a cost, None where nothing says it."""
        if cost is None or not self.known:
            return None
        gbps, rate = self._gbps(cost), self._rate(dtype)
        bytes_us = cost.bytes / gbps / 1e3 if gbps else 0.0
        products_us = cost.flops / rate * 1e6 if rate else 0.0
        most = max(bytes_us, products_us)
        return Ceiling(most, "products" if products_us > bytes_us else "bandwidth")

    def _gbps(self, cost: Cost) -> float:
        if self._roofs is None:
            return self._bandwidth
        sizes = self._roofs.memory[mix_of(cost)]
        near = min(sizes, key=lambda n: abs(math.log(int(n) / max(1, cost.bytes))))
        return max(sizes[near].values())

    def _rate(self, dtype: str) -> float:
        found = self._roofs.compute.items() if self._roofs else ()
        return max((rate for name, rate in found if name.startswith(f"{dtype} ")), default=0.0)


def of_call(call: Recorded, direction: Direction) -> Cost | None:
    """Return the least work of a recorded call by its operator's own formula."""
    spec = of_calls(table.load()[call.op], (call,))
    if spec.cost is None:
        return None
    with torch.device("meta"):
        inputs = {name: _meta(value) for name, value in call.inputs.items()}
    return spec.cost(inputs, direction)


def _meta(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    dtype = getattr(torch, value["dtype"])
    return torch.empty_strided(value["shape"], value["strides"], dtype=dtype, device="meta")


def of_event(event: Event, list_dtype: str = "") -> tuple[Cost, str] | None:
    """Return the least work of an operator of ATen and the dtype of its products, or None.

    Runs it on tensors without data. Views cost nothing.
    list_dtype  of lists of tensors, whose dtype a trace does not have; "": unknown
    """
    packet = _packet(event.name)
    if packet is None:
        return None
    for name in packet.overloads():
        try:
            given = [_made(value, list_dtype) for value in event.arguments]
            counted = FlopCounterMode(display=False, custom_mapping=dict(_UNCOUNTED))
            with torch.no_grad(), counted:
                made = _called(getattr(packet, name), given)
        except Exception:
            continue
        return _weighed(event.name, given, _tensors(made), counted.get_total_flops())
    return None


def _called(overload: Any, given: Sequence[Any]) -> Any:
    takes = overload._schema.arguments
    if len(given) > len(takes):
        raise TypeError("more arguments than the overload takes")
    pairs = list(zip(takes, given, strict=False))
    named = {a.name: value for a, value in pairs if a.kwarg_only and value is not None}
    placed = [value for a, value in pairs if not a.kwarg_only]
    while placed and placed[-1] is None:
        placed.pop()
    return overload(*placed, **named)


def _packet(name: str) -> Any:
    space, _, operator = name.partition("::")
    return getattr(torch.ops.aten, operator, None) if space == "aten" else None


def _made(value: Any, list_dtype: str) -> Any:
    if isinstance(value, Array):
        dtype = getattr(torch, value.dtype)
        return torch.empty_strided(value.shape, value.strides, dtype=dtype, device="meta")
    if isinstance(value, list) and value and isinstance(value[0], Array):
        dtype = getattr(torch, list_dtype)
        return [torch.empty_strided(a.shape, a.strides, dtype=dtype, device="meta") for a in value]
    return value


def _weighed(
    name: str, given: Sequence[Any], made: Sequence[Tensor], flops: int
) -> tuple[Cost, str]:
    inputs = [t for value in given for t in _tensors(value)]
    held = {t.untyped_storage()._cdata for t in inputs}
    fresh = [t for t in made if t.untyped_storage()._cdata not in held]
    inplace = name.endswith("_") and not name.endswith("__")
    if not fresh and not inplace:
        return Cost(0, 0), ""
    written = sum(map(_bytes, fresh))
    read = sum(map(_bytes, inputs))
    if inplace and inputs:
        written += _bytes(inputs[0])
        read -= _bytes(inputs[0]) * (name in _OVERWRITE)
    if name in _SOME and inputs:
        read += min(written, _bytes(inputs[0])) - _bytes(inputs[0])
    floating = [t for t in inputs if t.is_floating_point()]
    largest = max(floating, key=Tensor.numel, default=None)
    dtype = "" if largest is None else str(largest.dtype).removeprefix("torch.")
    return Cost(read, written, flops), dtype


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _tensors(item)]
    return []


def _bytes(t: Tensor) -> int:
    """Return the bytes of a tensor's elements, what is expanded once."""
    held = (n for n, stride in zip(t.shape, t.stride(), strict=True) if stride or n == 0)
    return math.prod(held) * t.element_size()
