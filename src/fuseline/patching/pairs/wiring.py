"""Whether a plan is what a module's forward does: shown bit by bit, with its children left out."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain, product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.modules import module as torchs

from fuseline.patching.pairs.plan import Plan, of_sequential, sequential, trace
from fuseline.patching.probe import INTERNALS, Unlike, autocast, is_plain
from fuseline.patching.serving import BOOKKEEPING, WITHOUT_STATE

# Rows of a batch and sizes of an image, or leading dimensions of rows, that are tried.
IMAGES = ((2, 32, 32), (3, 48, 40))
LEADS = ((5,), (2, 7), (2, 3, 4))


class Outcome(NamedTuple):
    """What a run did: calls of children in order, what they took and the result, gradients."""

    calls: list[Any]
    tensors: list[Tensor]
    gradients: list[Any]


def stand_in(child: Any, forward: Callable[..., Any]) -> Any:
    """Return a module of a child's class and attributes with another forward, without hooks."""
    made: Any = object.__new__(type(child))
    vars(made).update(vars(child), forward=forward)
    for name in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks"):
        vars(made)[name] = OrderedDict()
    return made


class Run:
    """One run of a forward with stubs, by random numbers that another run draws again."""

    def __init__(self, x: Tensor, graph: bool) -> None:
        self.device, self.graph, self.dtype = x.device, graph, x.dtype
        self.calls: list[Any] = []
        self.seen: list[Tensor] = []
        self.generator = torch.Generator(x.device).manual_seed(0)
        self.leaves = [x.clone().requires_grad_(graph)]

    def leaf(self, shape: torch.Size) -> Tensor:
        drawn = self._randn(shape).requires_grad_(self.graph)
        self.leaves.append(drawn)
        return drawn

    def stub(self, name: str, shapes: list[torch.Size]) -> Callable[..., Tensor]:
        """Return a forward that notes what it is given and draws results of these shapes."""
        left = iter(shapes)

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            given = [*args, *kwargs.values()]
            self.calls.append((name, _kinds(given), tuple(kwargs), self.modes()))
            self.seen += [a * 1 for a in given if isinstance(a, Tensor)]
            return self.leaf(next(left)) * 1

        return forward

    def modes(self) -> tuple[Any, ...]:
        """Return what the code around a call may have switched: gradients, autocast, hooks."""
        kind = self.device.type
        to = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(False)
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), to, hooks is None

    def outcome(self, forward: Callable[[Tensor], Any]) -> Outcome:
        with torch.set_grad_enabled(self.graph):
            y = forward(self.leaves[0] * 1)
            if type(y) is not Tensor:
                raise Unlike(f"its forward returns a {type(y).__name__}, expected a torch.Tensor")
            results = [*self.seen, y]
        tracked = [t for t in results if t.requires_grad]
        if not tracked:
            return Outcome(self.calls, results, [])
        dy = [self._randn(t.shape).to(t.dtype) for t in tracked]
        grads = torch.autograd.grad(tracked, self.leaves, dy, allow_unused=True)
        return Outcome(self.calls, results, list(grads))

    def _randn(self, shape: torch.Size) -> Tensor:
        # On the device: images take the host most of the time of a proof.
        return torch.randn(shape, generator=self.generator, dtype=self.dtype, device=self.device)


class _Unread:
    """An attribute that no forward may read, as nothing can watch it."""

    def __init__(self, name: str) -> None:
        vars(self)["_name"] = name

    def __getattr__(self, name: str) -> Any:
        raise Unlike(f"its forward reads its {vars(self)['_name']}, on which results may depend")


def unread(module: Any) -> frozenset[str]:
    """Return the names of attributes that are neither plain values nor parts nor functions."""
    known = INTERNALS | BOOKKEEPING
    return frozenset(
        name
        for name, value in vars(module).items()
        if name not in known and not (is_plain(value) or isinstance(value, WITHOUT_STATE))
    )


def plan_of(module: Any, own: type[Module], training: bool) -> Plan:
    """Return the steps of a module's forward in one mode; raise Unlike if they are not known."""
    if torchs._has_any_global_hook():
        raise Unlike("there are hooks of all modules")
    if sequential(own):
        return of_sequential(module)
    return trace(twin(module, own, training), own)


def twin(module: Any, own: type[Module], training: bool) -> Any:
    """Return a module with attributes and tensors of its own, and the same children."""
    made: Any = object.__new__(own)
    state = {n: copy.deepcopy(v) if is_plain(v) else v for n, v in vars(module).items()}
    state.pop("_fuseline", None)
    state |= {name: _Unread(name) for name in unread(module)}
    for kind in ("_parameters", "_buffers"):
        tensors = vars(module)[kind].items()
        state[kind] = {n: None if t is None else _clone(t) for n, t in tensors}
    vars(made).update({**state, "training": training, "_modules": dict(module._modules)})
    return made


def prove(
    plan: Plan, module: Any, own: type[Module], training: bool, first: Any
) -> list[int] | None:
    """Return the numbers of dimensions of x for which a plan does what the forward does; None: all.

    first  the Conv2d or Linear that x is made for
    Raises Unlike where it does something else, or for no x the same.
    """
    if sequential(own):
        return None
    found, errors = [], []
    conv = isinstance(first, torch.nn.Conv2d)
    lengths = {4: IMAGES} if conv else {len(lead) + 1: (lead,) for lead in LEADS}
    for dims, sizes in lengths.items():
        try:
            for size in sizes:
                shape = (size[0], first.in_channels, *size[1:]) if conv else None
                _same(plan, module, own, training, shape or (*size, first.in_features), first)
        except Differs:
            raise
        except Unlike as error:
            errors.append(error)
            continue
        found.append(dims)
    if not found:
        raise errors[0]
    return found


class Differs(Unlike):
    """The forward does something else than its plan."""


def _same(
    plan: Plan, module: Any, own: type[Module], training: bool, shape: Any, first: Any
) -> None:
    device = first.weight.device
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x = x.to(device, first.weight.dtype)
    shapes = _shapes(twin(module, own, training), own, x)
    for graph, to in product((False, True), (None, torch.bfloat16)):

        def outcome(forward: Callable[[Any, Tensor], Any], graph: bool, to: Any) -> Outcome:
            run, made = Run(x, graph), twin(module, own, training)
            vars(made)["_modules"] = _each(
                module, lambda name, child: stand_in(child, run.stub(name, shapes.get(name, [])))
            )
            tensors = [t for t in made._parameters.values() if t is not None]
            run.leaves += [t for t in tensors if graph and t.requires_grad]
            _seed(device)
            with autocast(device, to):
                found = run.outcome(lambda x: forward(made, x))
            found.tensors.extend(t for t in made._buffers.values() if t is not None)
            return found

        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            try:
                theirs = outcome(own.forward, graph, to)
                ours = outcome(lambda m, x: plan.run(m, x), graph, to)
            except Unlike:
                raise
            except Exception as error:  # whatever its forward does
                raise Unlike(_raises(error)) from error
        _compare(ours, theirs)


def _compare(ours: Outcome, theirs: Outcome) -> None:
    if ours.calls != theirs.calls:
        raise Differs("its forward calls its children in another way than it seems to")
    pairs = chain(zip(ours.tensors, theirs.tensors, strict=True),
                  zip(ours.gradients, theirs.gradients, strict=True))  # fmt: skip
    if len(ours.tensors) != len(theirs.tensors) or not all(_equal(a, b) for a, b in pairs):
        raise Differs("its forward gives other results than what it seems to do")


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def _shapes(made: Any, own: type[Module], x: Tensor) -> dict[str, list[torch.Size]]:
    """Return the shapes of the children's results, from a run without data."""
    found: dict[str, list[torch.Size]] = {}

    def noting(name: str, child: Any) -> Any:
        child = _on_meta(child)

        def forward(*args: Any, **kwargs: Any) -> Any:
            y = type(child).forward(child, *args, **kwargs)
            if type(y) is not Tensor:
                raise Unlike(f"its {name} returns a {type(y).__name__}")
            found.setdefault(name, []).append(y.shape)
            return y

        return stand_in(child, forward)

    try:
        vars(made)["_modules"] = _each(made, noting)
        for kind in ("_parameters", "_buffers"):
            tensors = vars(made)[kind].items()
            vars(made)[kind] = {n: t if t is None else t.detach().to("meta") for n, t in tensors}
        with torch.no_grad():
            own.forward(made, x.to("meta"))
    except Unlike:
        raise
    except Exception as error:  # whatever its forward does
        raise Unlike(_raises(error)) from error
    return found


def _each(module: Any, make: Callable[[str, Any], Any]) -> dict[str, Any]:
    """Return what is made of each child; one of two names stays one."""
    made = {id(m): make(name, m) for name, m in module.named_children()}
    return {n: None if m is None else made[id(m)] for n, m in module._modules.items()}


def _on_meta(child: Module) -> Module:
    """Return a copy of a child without data, in eval, without hooks."""
    tensors = chain(child.parameters(), child.buffers())
    memo: dict[int, Any] = {id(t): _meta(t) for t in tensors}
    made = copy.deepcopy(child, memo).eval()
    for module in made.modules():
        vars(module).update(_forward_pre_hooks=OrderedDict(), _forward_hooks=OrderedDict())
    return made


def _meta(t: Tensor) -> Tensor:
    """Return a plain tensor without data, of a DTensor the whole."""
    empty = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
    return Parameter(empty, requires_grad=False) if isinstance(t, Parameter) else empty


def _clone(t: Tensor) -> Tensor:
    made = t.detach().clone()
    return Parameter(made, requires_grad=t.requires_grad) if isinstance(t, Parameter) else made


def _kinds(given: list[Any]) -> tuple[Any, ...]:
    return tuple((a.shape, a.dtype) if isinstance(a, Tensor) else repr(a) for a in given)


def _seed(device: torch.device) -> None:
    """Seed what a forward may draw from, and no other device."""
    torch.default_generator.manual_seed(0)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(0)


def _raises(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [""])[0]
    return f"its forward raises {type(error).__name__} on a probe: {line}"
