"""A gated layer of a model, down(act(gate(x)) * up(x)): its forward with swiglu or geglu in it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Module

from fuseline.core.inputs.arguments import DTYPES
from fuseline.core.registration.operator import PLAIN
from fuseline.ops import geglu, swiglu
from fuseline.ops.geglu.op import SELECTOR as GEGLU
from fuseline.ops.swiglu.op import SELECTOR as SWIGLU
from fuseline.patching.pairs import wiring
from fuseline.patching.pairs.chain import hooked, is_fixed
from fuseline.patching.pairs.holder import children
from fuseline.patching.pairs.plan import Plan, Ref, Span, Step, renumbered
from fuseline.patching.probe import INTERNALS, Differs, Unlike, near, neutral, same
from fuseline.patching.recompute import recomputed
from fuseline.patching.serving import (
    NOTES,
    Watched,
    fixed_attributes,
    own_class,
    replaced_forward,
)

# What an activation may be -> the operator's name for it; None: swiglu.
SPELLINGS: tuple[str | None, ...] = (None, "tanh", "none")
SIZES = (1.0, 30.0)


class Gate:
    """Where a plan multiplies by an activation: the names of the child, the two steps, the values.

    a, b     the values; act(a) * b, or b * act(a) if `flipped`
    at, end  the step that calls the activation, and the one that multiplies
    down     the Linear that alone takes the product, in the step after, or None
    """

    def __init__(
        self, act: str, a: Ref, b: Ref, at: int, end: int, flipped: bool, down: str | None
    ) -> None:
        self.act, self.a, self.b, self.at, self.end = act, a, b, at, end
        self.flipped, self.down = flipped, down

    def without(self, plan: Plan) -> Plan:
        """Return the plan in which one step takes a and b in the place of the two; from it on goes
        a span, with `down` where there is one.
        """
        at, end = self.at, self.end
        both = Step("call_function", operator.mul, ((self.a, self.b),))
        steps = (*plan.steps[:at], *plan.steps[at + 1 : end], both, *plan.steps[end + 1 :])
        made = renumbered(steps, plan.result, removed=at + 1)
        return Plan(made.steps, made.result, ((end - 1, Span(2 if self.down else 1, 0)),))


def gate_of(plan: Plan, module: Any) -> Gate | None:
    """Return where a plan has a gate, whose activation nothing else takes."""
    for at, step in enumerate(plan.steps):
        if step.op != "call_module" or step.only is None or plan.uses(at + 1) != 1:
            continue
        if not is_activation(module._modules.get(step.target)):
            continue
        for end in range(at + 1, len(plan.steps)):
            last = plan.steps[end]
            if Ref(at + 1) in last.args:
                return _gate(plan, at, end, module)
            # What comes between is moved before the activation.
            if type(module._modules.get(last.target)) is not nn.Linear or last.only is None:
                break
    return None


def _gate(plan: Plan, at: int, end: int, module: Any) -> Gate | None:
    step, last = plan.steps[at], plan.steps[end]
    multiplies = last.target in (operator.mul, torch.mul) and last.op == "call_function"
    if not multiplies or last.kwargs or len(last.args) != 2:
        return None
    flipped = last.args[1] == Ref(at + 1)
    other, a = last.args[0 if flipped else 1], step.args[0]
    down = _taker(plan, end, module)
    return Gate(step.target, a, other, at, end, flipped, down) if type(other) is Ref else None


def _taker(plan: Plan, end: int, module: Any) -> str | None:
    """Return the Linear of the step after one, if nothing else takes what that one gives."""
    if end + 1 == len(plan.steps) or plan.uses(end + 1) != 1:
        return None
    step = plan.steps[end + 1]
    linear = step.only == end + 1 and type(module._modules.get(step.target)) is nn.Linear
    return step.target if linear else None


def is_activation(child: Any) -> bool:
    """Whether a module may be a function of one tensor: it has no parts that could change."""
    if not isinstance(child, Module):
        return False
    parts = (*child.children(), *child.parameters(), *child.buffers())
    return not parts and all(map(is_fixed, _attributes(child).values()))


def _attributes(child: Any) -> dict[str, Any]:
    return {n: v for n, v in vars(child).items() if n not in INTERNALS | NOTES}


class GatedLayer(Watched):
    """What a module with a gate carries.

    plans   by module.training: what was proven, for which numbers of dimensions of x, or why not
    dtypes  of the two factors, in which the gate is what our operator gives
    """

    def __init__(
        self, impl: str, fixed: Any, module: Module, gate: Gate, device: str,
        proven: tuple[str | None, frozenset[torch.dtype]],
        plans: dict[bool, tuple[Plan, frozenset[int]] | str],
    ) -> None:  # fmt: skip
        super().__init__(impl, fixed)
        self.children, self.act, self.flipped = children(module), gate.act, gate.flipped
        self.down = gate.down
        self.spelling, self.dtypes = proven
        self.device, self.plans = device, plans
        act: Any = module._modules[gate.act]
        self.state = type(act).forward, _attributes(act)

    def is_as(self, other: Watched) -> bool:
        """Whether another one serves the same."""
        names = set(vars(self)) - {"served", "own"}
        return type(other) is GatedLayer and all(
            vars(self)[name] == vars(other).get(name) for name in names
        )

    @property
    def missing(self) -> list[str]:
        return [why for why in self.plans.values() if isinstance(why, str)]

    def run(self, module: Any, made: Any, x: Any) -> Any:
        if type(x) not in PLAIN or x.is_nested:
            return f"x is a {type(x).__name__}"
        found = self.plans[module.training]
        if isinstance(found, str):
            return found
        plan, dims = found
        if x.dim() not in dims:
            return f"not proven: x of {x.dim()} dimensions"
        if children(module) != self.children:
            return "its children were changed after patch"
        act = module._modules[self.act]
        if why := hooked((act,)):
            return why
        forward, before = self.state
        now = _attributes(act)
        if type(act).forward is not forward or now.keys() != before.keys():
            return "its activation was changed after patch"
        if not all(same(now[name], value) for name, value in before.items()):
            return "its activation was changed after patch"
        return self.changed(module, made) or plan.run(module, x, partial(self._served, module))

    def _served(self, module: Any, site: int, pair: tuple[Tensor, Tensor]) -> Tensor:
        a, b = pair
        why = self._refusal(a, b)
        super().count(why)
        down = module._modules[self.down] if self.down else None
        if why is not None:
            y = _own(module._modules[self.act], a, b, self.flipped)
            return down(y) if down else y
        gate = partial(compute, self.spelling, impl=self.impl)
        return recomputed(down, gate(a, b), gate, a, b) if down else gate(a, b)

    def _refusal(self, a: Any, b: Any) -> str | None:
        if type(a) not in PLAIN or type(b) not in PLAIN:
            return f"its factors are a {type(a).__name__} and a {type(b).__name__}"
        if a.device.type != self.device or b.device != a.device:
            return f"its factors are on {a.device}, proven on {self.device}: patch again"
        if a.dtype != b.dtype or a.dtype not in self.dtypes or a.shape != b.shape:
            return f"its factors are {a.dtype} and {b.dtype} of shape {tuple(a.shape)}"
        return None

    def count(self, why: str | None) -> None:
        """Count a call that did not come to the gate; `_served` counts the others."""
        if why is not None:
            super().count(why)


def compute(spelling: str | None, a: Tensor, b: Tensor, impl: str) -> Tensor:
    """Return the gate by our operator."""
    return swiglu(a, b, impl) if spelling is None else geglu(a, b, spelling, impl)


def _own(act: Any, a: Tensor, b: Tensor, flipped: bool) -> Tensor:
    y: Tensor = act(a)
    return b * y if flipped else y * b


class Gates:
    """One call of patch: activations that are alike are proven once."""

    def __init__(self, impl: str) -> None:
        self.impl = impl
        self.proofs: dict[Any, Any] = {}

    def serving(self, module: Any) -> GatedLayer | str | None:
        """Return what would serve a module, why it is left alone, or None: it has no gate."""
        if not looks_gated(module) or replaced_forward(module):
            return None
        own: Any = own_class(module)
        try:
            plans = {mode: wiring.plan_of(module, own, mode) for mode in (True, False)}
        except Unlike:
            return None
        gate = gate_of(plans[True], module)
        if gate is None:
            return None
        try:
            return self._serving(module, own, gate, plans)
        except Unlike as why:
            return str(why)

    def _serving(self, module: Any, own: Any, gate: Gate, plans: Any) -> GatedLayer | str:
        fixed = fixed_attributes(module, wiring.unread(module))
        if isinstance(fixed, str):
            return fixed
        first = next(m for m in module.children() if type(m) is nn.Linear)
        device = first.weight.device
        act = module._modules[gate.act]
        if why := hooked((act,)):
            return why
        key = type(act), repr(_attributes(act)), device, gate.flipped
        with neutral(device):
            if key not in self.proofs:
                self.proofs[key] = prove(act, self.impl, device, gate.flipped)
            found: dict[bool, Any] = {}
            for mode, plan in plans.items():
                here = gate_of(plan, module)
                if here is None or vars(here) != vars(gate):
                    found[mode] = f"in {'training' if mode else 'eval'} it has another gate"
                    continue
                dims = wiring.prove(plan, module, own, mode, first)
                found[mode] = gate.without(plan), frozenset(dims or ())
        spelled = self.proofs[key]
        return GatedLayer(self.impl, fixed, module, gate, device.type, spelled, found)


def looks_gated(module: Module) -> bool:
    """Whether a module's children are two or three Linear and a function."""
    kinds = [type(child) is nn.Linear for child in module.children()]
    return len(kinds) - sum(kinds) == 1 and 2 <= sum(kinds) <= 3


def prove(
    act: Any, impl: str, device: torch.device, flipped: bool
) -> tuple[str | None, frozenset[torch.dtype]]:
    """Return which gate an activation makes, and in which dtypes ours is as near to fp64."""
    errors: list[Unlike] = []
    for spelling in SPELLINGS:
        if why := _unavailable(spelling, impl, device.type):
            errors.append(Unlike(why))
            continue
        found = set()
        for dtype in (torch.float32, *DTYPES):
            try:
                for a, b in _pairs(dtype, device):
                    _compare(act, spelling, a, b, impl, flipped)
                found.add(dtype)
            except Unlike as error:
                errors.append(error)
                if dtype == torch.float32:
                    break  # half types do not tell the functions from one another
        if torch.float32 in found:
            return spelling, frozenset(found)
    raise min((e for e in errors if isinstance(e, Differs)), key=lambda e: e.gap, default=errors[0])


def _unavailable(spelling: str | None, impl: str, device_type: str) -> str | None:
    selector = SWIGLU if spelling is None else GEGLU
    names = selector.names[:-1] if impl == "auto" else (impl,)
    if not set(names) <= set(selector.names):
        return f"{selector.op} has no implementation {impl!r}"
    reasons = [selector.unavailable(name, device_type) for name in names]
    return None if None in reasons else f"{selector.op}: {reasons[0]}"


def _pairs(dtype: torch.dtype, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Give factors: apart, halves of one tensor, transposed; small and large, with a NaN."""
    generator = torch.Generator()
    generator.seed()
    for size in SIZES:
        x = size * torch.randn((3, 5, 2 * 33), generator=generator)
        x[0, 0, 0] = torch.nan
        x = x.to(device, dtype)
        a, b = x.chunk(2, -1)
        yield a, b
        yield a.contiguous(), b.contiguous()
        yield a[0].t().contiguous().t(), b[0].t().contiguous().t()


def _compare(
    act: Any, spelling: str | None, a: Tensor, b: Tensor, impl: str, flipped: bool
) -> None:
    """Raise Unlike where ours is farther from fp64 than theirs and rounding explain."""
    dy = torch.randn(a.shape, generator=torch.Generator().manual_seed(0)).to(a)
    ours = _results(partial(compute, spelling, impl=impl), a, b, dy)
    exact = _results(partial(compute, spelling, impl="eager"), a.double(), b.double(), dy.double())
    for training in (True, False):
        twin: Any = object.__new__(type(act))
        vars(twin).update(vars(act), training=training)
        theirs = _results(partial(_own, twin, flipped=flipped), a, b, dy)
        if (ours[0].dtype, ours[0].stride()) != (theirs[0].dtype, theirs[0].stride()):
            raise Unlike(f"its gate gives {theirs[0].dtype} of strides {theirs[0].stride()}")
        for found, own, right in zip(ours, theirs, exact, strict=True):
            near(found, own, right)


def _results(gate: Any, a: Tensor, b: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """Return what a gate gives, and its gradients."""
    leaves = [t.detach().requires_grad_() for t in (a, b)]
    with torch.enable_grad():
        y = gate(*leaves)
    return y.detach(), *torch.autograd.grad(y, leaves, dy.to(y.dtype))
