"""Which implementation runs: decided from names and device types, never from tensor data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Choice:
    """One implementation; `unavailable(device_type)` says why it cannot run there, or None.

    call    what eager code calls
    traced  what a compiler is to see
    """

    name: str
    call: Callable[..., Any]
    traced: Callable[..., Any]
    unavailable: Callable[[str], str | None]


class Selector:
    """The implementations of one operator in order of preference; the last is the fallback.

    calls  (name or "auto", device type) -> the function; a look-up raises if the named one cannot
           run on this device. "auto" is the first that can; if that is the fallback, a warning
           says so once.

    `on_meta` serves tensors without data, whatever the binary holds.
    """

    def __init__(self, op: str, choices: tuple[Choice, ...], on_meta: Callable[..., Any]) -> None:
        self.op = op
        self.choices = choices
        self.names = tuple(choice.name for choice in choices)
        # Decided once: a look-up costs an eager call 0.1 us, and Dynamo sees a constant.
        decided = {
            (impl, device_type): choice
            for impl in ("auto", *self.names)
            for device_type in ("cuda", "cpu", "meta")
            if (choice := self._decide(impl, device_type)) is not None
        }
        self.calls = _Calls(self, {key: choice.call for key, choice in decided.items()})
        self._traced = {key: choice.traced for key, choice in decided.items()}
        self.calls["auto", "meta"] = self._traced["auto", "meta"] = on_meta

    def traced(self, impl: str, device_type: str) -> Callable[..., Any]:
        """Return what a compiler sees of an implementation; raise as a look-up in `calls` does."""
        call = self._traced.get((impl, device_type))
        return self.fallback(impl, device_type).traced if call is None else call

    def unavailable(self, impl: str, device_type: str) -> str | None:
        """Return why `impl` cannot run on a device type, or None; raise ValueError if unknown."""
        for choice in self.choices:
            if choice.name == impl:
                return choice.unavailable(device_type)
        have = ", ".join(("auto", *self.names))
        raise ValueError(f"{self.op}: impl is {impl!r}, expected one of: {have}")

    def fallback(self, impl: str, device_type: str) -> Choice:
        """Return what serves "auto" if nothing else can; raise RuntimeError for a name."""
        if impl != "auto":
            reason = self.unavailable(impl, device_type)
            raise RuntimeError(f"{self.op}: impl {impl!r} cannot run here: {reason}")
        return self.choices[-1]

    def _decide(self, impl: str, device_type: str) -> Choice | None:
        choices = self.choices[:-1] if impl == "auto" else self.choices
        for choice in choices:
            if impl in ("auto", choice.name) and choice.unavailable(device_type) is None:
                return choice
        return None

    def warn(self, device_type: str) -> None:
        why = "; ".join(f"{c.name}: {c.unavailable(device_type)}" for c in self.choices[:-1])
        warnings.warn(
            f"fuseline.{self.op} runs its slow {self.choices[-1].name!r} implementation on "
            f"{device_type}, because no other can: {why}",
            RuntimeWarning,
            stacklevel=4,
        )


class _Calls(dict[tuple[str, str], Callable[..., Any]]):
    """What eager code calls; the first look at what was not decided decides it."""

    def __init__(
        self, selector: Selector, known: dict[tuple[str, str], Callable[..., Any]]
    ) -> None:
        super().__init__(known)
        self._selector = selector

    def __missing__(self, key: tuple[str, str]) -> Callable[..., Any]:
        self[key] = call = self._selector.fallback(*key).call
        self._selector.warn(key[1])
        return call
