"""What a call did, observed: Python functions by a mode, operators and backward by the profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.overrides import TorchFunctionMode, resolve_name
from torch.profiler import ProfilerActivity, profile

_NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Event:
    """One operator, or one node of the backward, as the profiler saw it.

    depth      how many events it is within
    shapes     of its tensors, [] for what is none
    sequence   joins a node of the backward to the operator that made it; -1: none
    backward   run by autograd's engine
    """

    name: str
    depth: int
    shapes: tuple[tuple[int, ...], ...]
    sequence: int
    backward: bool


class Functions(TorchFunctionMode):
    """Collects the names of torch's functions that Python calls; reading an attribute is none."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") != "__get__":
            self.names.append(resolve_name(func) or str(func))
        return func(*args, **(kwargs or {}))


def operators(call: Callable[[], Any]) -> Iterator[Event]:
    """Events of a call, in the order in which they began."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        call()
    for event in recorded.events() or []:
        if event.cpu_parent is None:
            yield from _tree(event, 0, backward=event.name.startswith(_NODE))


def functions(call: Callable[[], Any]) -> list[str]:
    """Names of torch's functions that a call runs from Python."""
    with Functions() as mode:
        call()
    return mode.names


def _tree(event: Any, depth: int, *, backward: bool) -> Iterator[Event]:
    shapes = tuple(tuple(shape) for shape in event.input_shapes or ())
    yield Event(event.name.removeprefix(_NODE), depth, shapes, event.sequence_nr, backward)
    for child in event.cpu_children:
        yield from _tree(child, depth + 1, backward=backward)
