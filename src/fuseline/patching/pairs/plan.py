"""A module's forward as a list of steps: how it is found, and how it runs."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.proxy import GraphAppendingTracer
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode

from fuseline.patching.probe import Unlike, is_plain, same

IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow", "iand", "ior", "ixor")


@dataclass(frozen=True)
class Ref:
    """The value of a step; 0 is the argument of the forward, n the result of step n - 1."""

    index: int


@dataclass(frozen=True)
class Step:
    """One operation of a forward.

    op      "call_module", "call_function", "call_method" or "get_attr", as in torch.fx
    target  the name of a child, of a method or of a parameter; a function
    frees   values that no later step reads
    """

    op: str
    target: Any
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    frees: tuple[int, ...] = ()

    @cached_property
    def only(self) -> int | None:
        """The value that a child is called with alone, as most are."""
        if self.op == "call_module" and len(self.args) == 1 and not self.kwargs:
            return self.args[0].index if type(self.args[0]) is Ref else None
        return None

    def run(self, module: Any, values: list[Any]) -> Any:
        if self.only is not None:
            return module._modules[self.target](values[self.only])
        args = [_value(a, values) for a in self.args]
        kwargs = {name: _value(a, values) for name, a in self.kwargs}
        if self.op == "call_method":
            return getattr(args[0], self.target)(*args[1:], **kwargs)
        if self.op == "call_function":
            return self.target(*args, **kwargs)
        found = getattr(module, self.target)
        return found(*args, **kwargs) if self.op == "call_module" else found


class Span(NamedTuple):
    """Steps from one on, `length` of them, that a chain's operator may take the place of."""

    length: int
    site: int


@dataclass(frozen=True)
class Plan:
    """The steps of a forward of one argument, and its result, with the spans of chains."""

    steps: tuple[Step, ...]
    result: Any
    spans: tuple[tuple[int, Span], ...] = ()

    def run(self, module: Any, x: Any, serve: Callable[[int, Tensor], Any] | None = None) -> Any:
        """Return what the forward of a module gives for x.

        serve  (number of a site, its input) -> the result of its chain, or None: module by module
        """
        values = [x] + [None] * len(self.steps)
        del x
        at = 0
        while at < len(self.steps):
            span, y = self.starts.get(at) if serve else None, None
            if span is not None and serve is not None:
                y = serve(span.site, _value(self.steps[at].args[0], values))
            if span is None or y is None:
                y, length = self.steps[at].run(module, values), 1
            else:
                length = span.length
            values[at + length] = y
            for step in self.steps[at : at + length]:
                for index in step.frees:
                    values[index] = None
            at += length
        return _value(self.result, values)

    @cached_property
    def starts(self) -> dict[int, Span]:
        return dict(self.spans)

    def uses(self, index: int) -> int:
        """Return how often a value is read."""
        read = [i for step in self.steps for i in _refs((step.args, step.kwargs))]
        return [*read, *_refs(self.result)].count(index)


def renumbered(steps: tuple[Step, ...], result: Any, removed: int) -> Plan:
    """Return the plan of steps whose values are numbered as if `removed` were still one of them."""
    to = [Ref(index - (index > removed)) for index in range(len(steps) + 2)]
    moved = [replace(s, args=_value(s.args, to), kwargs=_value(s.kwargs, to)) for s in steps]
    result = _value(result, to)
    last: dict[int, int] = {}
    for i, step in enumerate(moved):
        last |= dict.fromkeys((*_refs((step.args, step.kwargs)), i + 1), i)
    last |= dict.fromkeys(_refs(result), len(moved))
    freeing = (tuple(index for index, at in last.items() if at == i) for i in range(len(moved)))
    freed = (replace(s, frees=frees) for s, frees in zip(moved, freeing, strict=True))
    return Plan(tuple(freed), result)


def sequential(kind: type[Module]) -> bool:
    """Whether a class documents its forward: its children, one after another."""
    names = ("forward", "__iter__")
    own = nn.Sequential
    return issubclass(kind, own) and all(getattr(kind, n) is getattr(own, n) for n in names)


def of_sequential(module: Any) -> Plan:
    names = list(module._modules)
    steps = [Step("call_module", name, (Ref(i),), (), (i,)) for i, name in enumerate(names)]
    return Plan(tuple(steps), Ref(len(names)))


def trace(twin: Any, own: type[Module]) -> Plan:
    """Return the steps of the forward of a twin, which is of no further use.

    Raises Unlike where they are not known beforehand.
    """
    tracer = _Tracer(fx.Graph())
    x = _Proxy(tracer.graph.placeholder("x"), tracer)
    for kind in ("_parameters", "_buffers"):
        tensors = {n: _get(tracer, n) for n, t in vars(twin)[kind].items() if t is not None}
        vars(twin)[kind] = {**vars(twin)[kind], **tensors}
    vars(twin)["_modules"] = {
        n: None if child is None else _Leaf(n, type(child), tracer)
        for n, child in twin._modules.items()
    }
    before = {n: v for n, v in vars(twin).items() if is_plain(v)}
    states = random.getstate(), torch.get_rng_state()
    try:
        with _Computed() as computed:
            result = tracer.create_arg(own.forward(twin, x))
    except Unlike:
        raise
    except Exception as error:  # whatever its forward does
        line = (str(error).strip().splitlines() or [""])[0]
        raise Unlike(f"its forward cannot be traced: {type(error).__name__}: {line}") from error
    now = {n: v for n, v in vars(twin).items() if is_plain(v)}
    if before.keys() != now.keys() or not all(same(v, now[n]) for n, v in before.items()):
        raise Unlike("its forward writes to its attributes")
    if states[0] != random.getstate() or computed.names:
        random.setstate(states[0])
        torch.set_rng_state(states[1])
        names = ", ".join(sorted(computed.names)) or "random"
        raise Unlike(f"its forward computes something that is not of its argument ({names})")
    return _plan(tracer.graph, result)


class _Computed(TorchDispatchMode):
    """Notes what is computed while a forward is traced, whose own values are never computed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name())
        return func(*args, **(kwargs or {}))


class _Leaf:
    """A child whose calls are noted, not run; whoever reads its attributes is refused."""

    def __init__(self, name: str, kind: type[Module], tracer: Any) -> None:
        vars_of = object.__getattribute__(self, "__dict__")
        vars_of.update(name=name, kind=kind, tracer=tracer)

    def __getattribute__(self, name: str) -> Any:
        of = object.__getattribute__(self, "__dict__")
        if name == "__class__":
            return of["kind"]
        raise Unlike(f"its forward reads {name} of its {of['name']}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        of = object.__getattribute__(self, "__dict__")
        return of["tracer"].create_proxy("call_module", of["name"], args, kwargs)


class _Proxy(fx.Proxy):  # type: ignore[no-any-unimported,misc]
    """A value of a forward. Torch's would make `x += y` a sum that is written elsewhere."""


def _in_place(name: str) -> Callable[..., Any]:
    def call(self: Any, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return call


for _name in IN_PLACE:
    setattr(_Proxy, f"__{_name}__", _in_place(_name))


class _Tracer(GraphAppendingTracer):  # type: ignore[no-any-unimported,misc]
    """Notes steps; replaces nothing that other threads call, as torch.fx.Tracer does."""

    def proxy(self, node: Any) -> Any:
        return _Proxy(node, self)


def _get(tracer: Any, name: str) -> Any:
    return _Proxy(tracer.graph.get_attr(name), tracer)


def _plan(graph: Any, result: Any) -> Plan:
    output = graph.output(result)
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)
    nodes = [node for node in graph.nodes if node is not output]
    refs: dict[Any, Any] = {node: Ref(i) for i, node in enumerate(nodes)}
    last: dict[int, int] = {}
    for i, node in enumerate(nodes):
        last |= {refs[n].index: i for n in node.all_input_nodes} | {i: i}
    last |= {refs[node].index: len(nodes) for node in output.all_input_nodes}

    def step(i: int, node: Any) -> Step:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), refs.__getitem__)
        frees = tuple(index for index, at in last.items() if at == i)
        return Step(node.op, node.target, tuple(args), tuple(kwargs.items()), frees)

    steps = [step(i, node) for i, node in enumerate(nodes) if i]
    return Plan(tuple(steps), fx.map_arg(result, refs.__getitem__))


def _value(a: Any, values: list[Any]) -> Any:
    """Return an argument with values in the place of references."""
    if type(a) is Ref:
        return values[a.index]
    if isinstance(a, slice):
        return slice(*(_value(part, values) for part in (a.start, a.stop, a.step)))
    if isinstance(a, (tuple, list)):
        return type(a)(_value(part, values) for part in a)
    if isinstance(a, dict):
        return {name: _value(part, values) for name, part in a.items()}
    return a


def _refs(a: Any) -> Iterator[int]:
    if type(a) is Ref:
        yield a.index
    elif isinstance(a, slice):
        yield from _refs((a.start, a.stop, a.step))
    elif isinstance(a, (tuple, list)):
        for part in a:
            yield from _refs(part)
    elif isinstance(a, dict):
        yield from _refs(list(a.values()))
