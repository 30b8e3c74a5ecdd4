"""A module whose children run on our operators in chains: what it carries, and what is watched."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from fuseline.core.registration.operator import PLAIN
from fuseline.patching.pairs.chain import FEW, WITH_GRADIENT, hooked, of_plain_tensors, state
from fuseline.patching.pairs.plan import Plan
from fuseline.patching.pairs.proof import Proof
from fuseline.patching.serving import Watched, own_class

REPLACED = "one of its modules was replaced after patch"

_counting = threading.Lock()


class Site:
    """One chain of a holder, and the calls that it served.

    name, kind  as in the report
    members     at the proof, of which nothing is kept but what the proof rests on
    """

    def __init__(self, name: str, chain: Any, members: Any, proof: Proof, device: str) -> None:
        self.name, self.chain, self.proof, self.device = name, chain, proof, device
        self.kind = chain.kind(members)
        self.kinds = tuple(map(type, members))
        self.state = state(chain, members, chain.tensors(members))
        self.served = 0
        self.own: dict[str, int] = {}

    def holds(self, members: Any) -> str | None:
        """Return what about the modules is not as it was at the proof, or None."""
        if tuple(map(type, members)) != self.kinds:
            return REPLACED
        return self._changed(members, self.chain.tensors(members))

    def _changed(self, members: Any, tensors: Any) -> str | None:
        if why := hooked(members):
            return why
        if state(self.chain, members, tensors) != self.state:
            return "one of its modules was changed after patch"
        return None

    def refusal(self, members: Any, x: Any) -> str | None:
        """Return why the modules compute a call themselves, or None."""
        if type(x) not in PLAIN or x.is_nested:
            return f"x is a {type(x).__name__}"
        if tuple(map(type, members)) != self.kinds:
            return REPLACED
        chain, auto = self.chain, self.chain.impl == "auto"
        # Most refusals, found in little time.
        if auto and (why := chain.slower_call(x, members)):
            return why  # type: ignore[no-any-return]
        tensors = chain.tensors(members)
        if why := self._changed(members, tensors):
            return why
        kind = "cuda" if x.is_cuda else x.device.type
        if kind != self.device:
            return f"x is on {kind}, proven on {self.device}: patch again"
        if why := of_plain_tensors(tensors, x) or chain.unlike(x, members):
            return why
        graph = torch.is_grad_enabled() and (
            x.requires_grad or any(t is not None and t.requires_grad for t in tensors)
        )
        to = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        training = chain.training(members)
        if (to, training, graph) not in self.proof.cells:
            cast = "" if to is None else f", autocast to {to}"
            return f"not proven: in {'training' if training else 'eval'}{cast}"
        if auto and graph:
            return chain.slower_with_gradient(kind, training)  # type: ignore[no-any-return]
        return None

    def count(self, why: str | None) -> None:
        with _counting:
            if why is None:
                self.served += 1
            else:
                self.own[why] = self.own.get(why, 0) + 1


@dataclass(frozen=True)
class Wiring:
    """How a holder calls its children in one mode, for which numbers of dimensions of x.

    dims  None: for all
    """

    plan: Plan
    dims: frozenset[int] | None

    def of_x(self) -> bool:
        """Whether its first chain takes the argument itself."""
        return self.plan.steps[self.plan.spans[0][0]].only == 0


class Holder(Watched):
    """What a module carries whose chains are served.

    wirings   by module.training: what was proven, or why calls are the module's own
    children  names and classes of all children
    """

    def __init__(
        self, impl: str, fixed: Any, module: Module, wirings: dict[bool, Wiring | str],
        sites: tuple[Site, ...],
    ) -> None:  # fmt: skip
        super().__init__(impl, fixed)
        self.children, self.wirings, self.sites = children(module), wirings, sites
        # Such calls on a CPU are left alone before anything that takes long; 0: none are.
        alone = len(sites) == 1 and all(isinstance(w, str) or w.of_x() for w in wirings.values())
        self.least = sites[0].chain.least(sites[0].chain.members(module)) if alone else 0

    @property
    def missing(self) -> list[tuple[str, str, str]]:
        """Return what of its chains is not served, and why, for a report."""
        wired = [w for w in self.wirings.values() if isinstance(w, str)]
        return [(s.name, s.kind, why) for s in self.sites for why in (*s.proof.missing, *wired)]

    def run(self, module: Any, made: Any, x: Any) -> Any:
        if type(x) not in PLAIN or x.is_nested:
            return f"x is a {type(x).__name__}"
        if self.least and x.is_cpu:
            if x.numel() < self.least:
                return FEW
            if torch.is_grad_enabled() and x.requires_grad:
                return WITH_GRADIENT
        wiring = self.wirings[module.training]
        if isinstance(wiring, str):
            return wiring
        if wiring.dims is not None and x.dim() not in wiring.dims:
            return f"not proven: x of {x.dim()} dimensions"
        if children(module) != self.children:
            return "its children were changed after patch"
        return self.changed(module, made) or wiring.plan.run(
            module, x, partial(self._serve, module)
        )

    def _serve(self, module: Any, index: int, x: Any) -> Tensor | None:
        site = self.sites[index]
        members = site.chain.members(module)
        why = site.refusal(members, x)
        site.count(why)
        return site.chain.compute(x, members) if why is None else None

    def count(self, why: str | None) -> None:
        """Count a call that no chain of was served; the others are counted chain by chain."""
        if why is not None:
            for site in self.sites:
                site.count(why)

    def still(self, module: Module, impl: str, fixed: Any) -> bool:
        """Whether all that the proofs rest on is as it was."""
        members = [(site, site.chain.members(module)) for site in self.sites]
        return (self.impl, self.fixed, self.children) == (impl, fixed, children(module)) and all(
            site.holds(m) is None and m[0].weight.device.type == site.device for site, m in members
        )


def children(module: Module) -> tuple[tuple[str, Any], ...]:
    """Return the names and classes of a module's children; without ours, which patch may give."""
    return tuple((n, None if m is None else own_class(m)) for n, m in module._modules.items())
