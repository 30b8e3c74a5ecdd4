"""Which implementation runs: decided from names and device types, never from tensor data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Choice:
    """One implementation; `unavailable(device_type)` says why it cannot run there, or None."""

    name: str
    call: Callable[..., Any]
    unavailable: Callable[[str], str | None]


class Selector:
    """The implementations of one operator in order of preference; the last is the fallback.

    `on_meta` serves tensors without data, whatever the binary holds.
    """

    def __init__(self, op: str, choices: tuple[Choice, ...], on_meta: Callable[..., Any]) -> None:
        self.op = op
        self.choices = choices
        self.names = tuple(choice.name for choice in choices)
        # Decided once: a look-up costs an eager call 0.1 us, and Dynamo sees a constant.
        self._calls = {
            (impl, device_type): call
            for impl in ("auto", *self.names)
            for device_type in ("cuda", "cpu", "meta")
            if (call := self._decide(impl, device_type)) is not None
        }
        self._calls["auto", "meta"] = on_meta

    def unavailable(self, impl: str, device_type: str) -> str | None:
        """Why `impl` cannot run on a device type, or None; ValueError if there is no such name."""
        for choice in self.choices:
            if choice.name == impl:
                return choice.unavailable(device_type)
        have = ", ".join(("auto", *self.names))
        raise ValueError(f"{self.op}: impl is {impl!r}, expected one of: {have}")

    def pick(self, impl: str, device_type: str) -> Callable[..., Any]:
        """The function of an implementation; raises if the named one cannot run on this device.

        "auto" takes the first that can; if that is the fallback, a warning says so once.
        """
        call = self._calls.get((impl, device_type))
        if call is not None:
            return call
        if impl != "auto":
            reason = self.unavailable(impl, device_type)
            raise RuntimeError(f"{self.op}: impl {impl!r} cannot run here: {reason}")
        if not torch.compiler.is_compiling():
            self._warn(device_type)
            self._calls[impl, device_type] = self.choices[-1].call
        return self.choices[-1].call

    def _decide(self, impl: str, device_type: str) -> Callable[..., Any] | None:
        choices = self.choices[:-1] if impl == "auto" else self.choices
        for choice in choices:
            if impl in ("auto", choice.name) and choice.unavailable(device_type) is None:
                return choice.call
        return None

    def _warn(self, device_type: str) -> None:
        why = "; ".join(f"{c.name}: {c.unavailable(device_type)}" for c in self.choices[:-1])
        warnings.warn(
            f"fuseline.{self.op} runs its slow {self.choices[-1].name!r} implementation on "
            f"{device_type}, because no other can: {why}",
            RuntimeWarning,
            stacklevel=4,
        )
