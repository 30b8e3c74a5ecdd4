"""The chains of a model: which modules hold some, and what is proven of each."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn import Module

from fuseline.patching.pairs import proof, wiring
from fuseline.patching.pairs.chain import Chain, ConvBn, LinearGelu, is_gelu, is_relu, state
from fuseline.patching.pairs.holder import Holder, Site, Wiring
from fuseline.patching.pairs.plan import Plan, Ref, Span, Step
from fuseline.patching.probe import Unlike, neutral
from fuseline.patching.report import Words
from fuseline.patching.serving import fixed_attributes, own_class, patched_class, replaced_forward

ALREADY = "it runs on fuseline already"
Found = tuple[int, int, Any]


class Pairs:
    """One call of patch: chains that are alike are proven once."""

    def __init__(self, impl: str, sharded: bool) -> None:
        self.impl, self.sharded = impl, sharded
        self.proofs: dict[Any, proof.Proof] = {}
        self.kept: list[Words] = []
        # Modules with chains and those in them, by id.
        self.known: set[int] = set()

    def holder(self, name: str, module: Module) -> Holder | None:
        """Return what would serve a module's chains, or None; why not goes to `kept`."""
        if not looks_like_a_holder(module):
            return None
        try:
            return self._holder(name, module)
        except Unlike as why:
            self.kept.append((name, own_class(module).__name__, str(why)))
            return None

    def _holder(self, name: str, module: Any) -> Holder | None:
        own: Any = own_class(module)
        if self.sharded:
            raise Unlike("FSDP gathers the parameters of its model")
        if replaced_forward(module):
            raise Unlike("its forward was replaced on the instance")
        fixed = fixed_attributes(module)
        if isinstance(fixed, str):
            raise Unlike(fixed)
        if hasattr(module, "parametrizations"):
            raise Unlike(f"its {', '.join(module.parametrizations)} was parametrized before")
        before = vars(module).get("_fuseline")
        if isinstance(before, Holder) and before.still(module, self.impl, fixed):
            self.kept += [(site.name, site.kind, ALREADY) for site in before.sites]
            self._note(module, [site.chain for site in before.sites])
            return None
        plans = {training: _plan(module, own, training) for training in (True, False)}
        found = {mode: list(chains(plan, module, self.impl)) for mode, plan in plans.items()}
        sites = self._sites(name, module, [chain for some in found.values() for *_, chain in some])
        if not sites:
            return None
        patched_class(own)
        wirings = {}
        for mode, plan in plans.items():
            wirings[mode] = _wiring(plan, found[mode], sites, module, own, mode)
        if all(isinstance(wired, str) for wired in wirings.values()):
            raise Unlike("; ".join(dict.fromkeys(map(str, wirings.values()))))
        return Holder(self.impl, fixed, module, wirings, tuple(sites))

    def _sites(self, name: str, module: Any, found: list[Chain]) -> list[Site]:
        sites = []
        self._note(module, found)
        for chain in dict.fromkeys(found):
            members = chain.members(module)
            where = ".".join(filter(None, (name, chain.names[0])))
            device = members[0].weight.device
            why = chain.unfit(members) or chain.unavailable(device.type)
            if why is None:
                tried = [(c, self._proof(c, members, device)) for c in chain.spellings(members)]
                chosen, proven = max(tried, key=lambda one: len(one[1].cells))
                if proven.cells:
                    sites.append(Site(where, chosen, members, proven, device.type))
                    continue
                why = "; ".join(proven.missing)
            self.kept.append((where, chain.kind(members), why))
        return sites

    def _note(self, module: Any, found: list[Any]) -> None:
        members = [m for chain in found for m in chain.members(module)]
        self.known |= set(map(id, (*members, module))) if members else set()

    def _proof(self, chain: Any, members: Any, device: Any) -> proof.Proof:
        tensors = chain.tensors(members)
        shapes = [t if t is None else (t.shape, t.stride()) for t in tensors]
        key = repr((chain.details, state(chain, members, tensors), shapes, device))
        if key not in self.proofs:
            with neutral(device):
                self.proofs[key] = proof.prove(chain, members, device)
        return self.proofs[key]


def looks_like_a_holder(module: Module) -> bool:
    """Whether a module has children of its own that a chain may be made of."""
    kinds = {type(child) for child in module.children()}
    if {nn.Conv2d, nn.BatchNorm2d} <= kinds:
        return True
    linear = any(type(c) is nn.Linear and c.bias is not None for c in module.children())
    return linear and any(map(is_gelu, module.children()))


def chains(plan: Plan, module: Any, impl: str) -> Iterator[Found]:
    """Give the first step, the number of steps and what is known of each chain of a plan.

    Each takes the result of the one before, which nothing else takes.
    """
    at = 0
    while at < len(plan.steps):
        found = _chain(plan, module, at, impl)
        if found is not None:
            yield at, *found
        at += found[0] if found is not None else 1


def _chain(plan: Plan, module: Any, at: int, impl: str) -> tuple[int, Any] | None:
    steps = plan.steps[at : at + 3]
    # The value that a step gives is numbered from one.
    if len(steps) < 2 or not _follows(plan, at + 1, steps[1]):
        return None
    first, second = (_child(module, step) for step in steps[:2])
    if first is None or second is None:
        return None
    names = (steps[0].target, steps[1].target)
    if type(first) is nn.Linear and first.bias is not None and is_gelu(second):
        return 2, LinearGelu(names, None, impl, getattr(second, "approximate", "none"))
    if (type(first), type(second)) != (nn.Conv2d, nn.BatchNorm2d):
        return None
    third = steps[2] if len(steps) > 2 and _follows(plan, at + 2, steps[2]) else None
    if third is not None and type(_child(module, third)) is nn.ReLU:
        return 3, ConvBn((*names, third.target), None, impl, relu=True)
    if (
        third is not None
        and third.op == "call_function"
        and is_relu(third.target, dict(third.kwargs))
    ):
        return 3, ConvBn(names, third.target, impl, relu=True)
    return 2, ConvBn(names, None, impl)


def _child(module: Any, step: Step | None) -> Any:
    """Return the child that a step calls with one value alone, or None."""
    if step is None or step.op != "call_module" or step.kwargs or len(step.args) != 1:
        return None
    return module._modules.get(step.target) if type(step.args[0]) is Ref else None


def _first(plan: Plan, module: Any, device: Any) -> Any:
    """Return the layer that says what x is, which a chain that is served need not begin with: the
    first that the forward comes to, be it in a child.
    """
    called = [module._modules[step.target] for step in plan.steps if step.op == "call_module"]
    layers = [m for child in called if child is not None for m in child.modules()]
    kinds = (nn.Conv2d, nn.Linear)
    return next(m for m in layers if type(m) in kinds and m.weight.device == device)


def _follows(plan: Plan, value: int, step: Step) -> bool:
    """Whether a step is all that takes a value."""
    return step.args == (Ref(value),) and plan.uses(value) == 1


def _plan(module: Any, own: type[Module], training: bool) -> Plan:
    plan = wiring.plan_of(module, own, training)
    try:
        pickle.dumps(plan)
    except Exception as error:  # a function that no copy of the module could have
        raise Unlike(f"its forward calls what cannot be pickled: {error}") from error
    return plan


def _wiring(
    plan: Plan, found: list[Found], sites: list[Site], module: Any, own: Any, training: bool
) -> Wiring | str:
    known = {(site.chain.names, site.chain.function): i for i, site in enumerate(sites)}
    spans = tuple(
        (at, Span(length, known[chain.names, chain.function]))
        for at, length, chain in found
        if (chain.names, chain.function) in known
    )
    mode = "training" if training else "eval"
    if not spans:
        return f"in {mode} there is none"
    device = sites[spans[0][1].site].chain.members(module)[0].weight.device
    first = _first(plan, module, device)
    try:
        with neutral(device):
            dims = wiring.prove(plan, module, own, training, first)
    except Unlike as why:
        return f"in {mode} {why}"
    return Wiring(Plan(plan.steps, plan.result, spans), None if dims is None else frozenset(dims))
