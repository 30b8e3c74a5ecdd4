"""Functions that draw random numbers: recognised, and compared with both sides under one seed."""

from __future__ import annotations

import inspect
import pickle
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo.config as dynamo
import torch._inductor.config as inductor
from torch.utils._pytree import tree_leaves

State = tuple[Callable[[], Any], Callable[[Any], Any]]


class Sources:
    """All that a function may draw from: torch, random, numpy, generators that its code names."""

    def __init__(self, function: Callable[..., Any], device: str) -> None:
        self._each: list[State] = [
            (torch.get_rng_state, torch.set_rng_state),
            (random.getstate, random.setstate),
            *(_generator(found) for found in _named(function) if _generator(found)),
        ]
        if device.startswith("cuda"):
            self._each.append((torch.cuda.get_rng_state, torch.cuda.set_rng_state))
        if numpy := sys.modules.get("numpy"):
            self._each.append((numpy.random.get_state, numpy.random.set_state))

    def states(self) -> list[Any]:
        """Return what the next numbers depend on."""
        return [get() for get, _ in self._each]

    def restore(self, states: Sequence[Any]) -> None:
        """Have the same numbers come again as after `states` was taken."""
        for (_, put), state in zip(self._each, states, strict=True):
            put(state)


class Randomness:
    """Whether a function is random, and what its calls give from one state of its sources.

    random    whether it draws numbers, or a second call differs from the first
    seeded    whether the same state gives the same results, so that two functions can be compared
    expected  its results by size from that state
    """

    def __init__(
        self,
        call: Callable[[int], Any],
        sizes: int,
        sources: Sources,
        differ: Callable[[Any, Any], bool],
    ) -> None:
        self._sources, self._states = sources, sources.states()
        self.expected = [self.seeded_call(call, i) for i in range(sizes)]
        drew = _bytes(sources.states()) != _bytes(self._states)
        second = [call(i) for i in range(sizes)]
        self.second_differs = any(map(differ, second, self.expected))
        again = [self.seeded_call(call, i) for i in range(sizes)]
        self.random = drew or self.second_differs
        self.seeded = not any(map(differ, again, self.expected))

    def seeded_call(self, call: Callable[[int], Any], size: int) -> Any:
        """Return what a call gives from the one state."""
        self._sources.restore(self._states)
        return call(size)

    @property
    def told(self) -> str:
        """Return the sentence for the reader; "" for a function that is not random."""
        if not self.random:
            return ""
        second = "differs" if self.second_differs else "may differ"
        if not self.seeded:
            return (
                f"random: eager's own second call {second}, from equal seeds too; "
                "compiled results are not compared"
            )
        return (
            f"random: eager's own second call {second}; results are compared under one seed, "
            "with torch._inductor.config.fallback_random"
        )


@contextmanager
def eagers_numbers() -> Iterator[None]:
    """Have compiled code draw the numbers that eager would."""
    with inductor.patch(fallback_random=True), dynamo.patch(use_numpy_random_stream=True):
        yield


def _bytes(states: Sequence[Any]) -> bytes:
    # A tensor's pickle differs from the next one's of the same tensor.
    plain = [state.tolist() if isinstance(state, torch.Tensor) else state for state in states]
    return pickle.dumps(plain)


def _named(function: Callable[..., Any]) -> Iterator[Any]:
    """Yield what the function's module, its closure, its object and its defaults hold."""
    inner = inspect.unwrap(function)
    owner = getattr(inner, "__self__", inner)
    cells = inspect.getclosurevars(inner).nonlocals if inspect.isfunction(inner) else {}
    spaces = [getattr(inner, "__globals__", {}), cells, getattr(owner, "__dict__", {})]
    defaults = (getattr(inner, "__defaults__", None), getattr(inner, "__kwdefaults__", None))
    yield from {id(found): found for found in tree_leaves([*map(dict, spaces), defaults])}.values()


def _generator(found: Any) -> Any:
    """Return how to get and set a generator's state; None for what is none."""
    if isinstance(found, torch.Generator):
        return found.get_state, found.set_state
    if isinstance(found, random.Random):
        return found.getstate, found.setstate
    bits = getattr(found, "bit_generator", None)
    if bits is not None and type(found).__module__.startswith("numpy."):
        return lambda: bits.state, lambda state: setattr(bits, "state", state)
    if type(found).__name__ == "RandomState" and hasattr(found, "set_state"):
        return found.get_state, found.set_state
    return None
