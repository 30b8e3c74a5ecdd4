"""What a call did, observed: functions by a mode, operators and backward by the profiler."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.profiler import ProfilerActivity, profile, record_function

from fuselab.trace.call import Call, place, told
from fuselab.trace.walk import keys_of

Keys = Callable[[list[torch.Tensor]], torch._C.DispatchKeySet | None]
_NODE = "autograd::engine::evaluate_function: "
# What the profiler does itself.
_ITS_OWN = ("Activity Buffer Request", "Lazy Function Loading", "Instrumentation")
_FORWARD, _BACKWARD, _FUNCTION = "fuselab::forward", "fuselab::backward", "fuselab::function::"
_NOT_THE_USERS = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]))


class Kind(str, Enum):
    """What an event is."""

    FUNCTION = "function"
    OPERATOR = "operator"
    AUTOGRAD = "autograd"


@dataclass(frozen=True)
class Function:
    """A function of torch's that Python called.

    place  file:line of its definition, "" if it is not written in Python
    line   file:line of the user's code that called it, "" if there is none
    keys   of the tensors that it got, as the thread was set then
    """

    name: str
    place: str
    line: str
    keys: torch._C.DispatchKeySet | None


@dataclass(frozen=True)
class Event:
    """A function, an operator or a node of the backward, as it was observed.

    depth     how many events it is within
    shapes    of its arguments, () for what is no tensor
    kinds     of its arguments, in the profiler's words: a dtype, Scalar, TensorList, ...
    sequence  joins a node of the backward to the operator that made it; -1: none
    kernels   that it launched on a GPU itself
    function  of the event, or of the one that it is within
    """

    kind: Kind
    name: str
    depth: int
    shapes: tuple[tuple[int, ...], ...] = ()
    kinds: tuple[str, ...] = ()
    sequence: int = -1
    kernels: tuple[str, ...] = ()
    function: Function | None = None


class Functions(TorchFunctionMode):
    """Names torch's functions that Python calls to the profiler; reading an attribute is none."""

    def __init__(self, keys: Keys) -> None:
        super().__init__()
        self.seen: list[Function] = []
        self._keys = keys

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if getattr(func, "__name__", "") == "__get__":
            return func(*args, **(kwargs or {}))
        leaves = torch.utils._pytree.tree_leaves((args, kwargs or {}))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self.seen.append(Function(_name(func), place(func), _callers_line(), self._keys(tensors)))
        with record_function(f"{_FUNCTION}{len(self.seen) - 1}"):
            return func(*args, **(kwargs or {}))


def observe(call: Call, *, computed: bool) -> tuple[list[Event], list[Event]]:
    """Return what a call did, and what the backward of the results did (none without a gradient).

    The call runs twice, the first time unobserved, so that what happens only once is not in it.
    """
    # Kineto notes each profile on stderr. It reads this once, so its log stays off.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    with call.contexts():
        call.run()
    mode = Functions(keys_of if computed else lambda _: None)
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as recorded:
        with record_function(_FORWARD), call.contexts(), mode:
            out = call.run()
        results = [
            leaf
            for leaf in torch.utils._pytree.tree_leaves(out)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        gradients = [torch.ones_like(result) for result in results]
        with record_function(_BACKWARD), told("CALL's backward"):
            if results:
                torch.autograd.backward(results, gradients)
    return _split(list(recorded.events() or []), mode.seen)


def _split(events: list[Any], functions: list[Function]) -> tuple[list[Event], list[Event]]:
    forward: list[Event] = []
    backward: list[Event] = []
    for event in events:
        if event.name == _FORWARD:
            forward += _within(event, 0, None, functions)
        elif event.name == _BACKWARD:
            backward += _within(event, 0, None, functions)
        # Autograd runs what is on a GPU in a thread of that GPU's.
        elif event.cpu_parent is None and event.name.startswith(_NODE):
            backward += _tree(event, 0, None, functions)
    return forward, backward


def _within(
    event: Any, depth: int, function: Function | None, functions: list[Function]
) -> Iterator[Event]:
    for child in event.cpu_children:
        yield from _tree(child, depth, function, functions)


def _tree(
    event: Any, depth: int, function: Function | None, functions: list[Function]
) -> Iterator[Event]:
    if event.name in _ITS_OWN:
        return
    if event.name.startswith(_FUNCTION):
        function = functions[int(event.name.removeprefix(_FUNCTION))]
        yield Event(Kind.FUNCTION, function.name, depth, function=function)
    else:
        node = event.name.startswith(_NODE)
        yield Event(
            Kind.AUTOGRAD if node else Kind.OPERATOR,
            event.name.removeprefix(_NODE),
            depth,
            tuple(_shape(shape) for shape in event.input_shapes or ()),
            tuple(getattr(event, "input_dtypes", None) or ()),
            event.sequence_nr,
            tuple(kernel.name for kernel in event.kernels),
            function,
        )
    for child in event.cpu_children:
        # Within what the engine evaluates, the node's own event says nothing new.
        if event.name == f"{_NODE}{child.name}":
            yield from _within(child, depth + 1, function, functions)
        else:
            yield from _tree(child, depth + 1, function, functions)


def _shape(shape: Any) -> tuple[int, ...]:
    return tuple(n for n in shape if isinstance(n, int)) if isinstance(shape, (list, tuple)) else ()


def _name(function: Callable[..., Any]) -> str:
    """Return the public name; torch knows some functions by the name of an alias (mm as spmm)."""
    if isinstance(function, torch._ops.OpOverload):
        return str(function)
    own = getattr(function, "__name__", str(function))
    name = resolve_name(function) or own
    return name if name.rpartition(".")[2] == own else f"{name.rpartition('.')[0]}.{own}"


def _callers_line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if file.endswith(".py") and not file.startswith(_NOT_THE_USERS):
            return f"{file}:{frame.f_lineno}"
        if file == "<CALL>":
            return ""
        frame = frame.f_back
    return ""
