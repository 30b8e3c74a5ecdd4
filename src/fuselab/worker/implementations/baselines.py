"""The implementations of one group: the spec's, the baselines made from eager, and rivals."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import fuseline
from fuselab import plugins, rivals
from fuselab.model import Proof
from fuselab.planning.plan import CEILING
from fuselab.rivals.rival import Rival
from fuselab.worker.implementations.enabled import ENABLED, Takeover
from fuselab.worker.protocol import describe
from fuseline import table
from fuseline.core import native
from fuseline.core.specs.spec import Direction, Implementation, Inputs, OpSpec

TORCHSCRIPT = "torchscript"
COMPILE = "compile"
BASELINES = (TORCHSCRIPT, COMPILE)
# Baselines that run only if they are named.
ASKED = (ENABLED,)
MADE = (*BASELINES, *ASKED)


class Unsupported(Exception):
    """The implementation does not exist here; the text is the reason."""


def names(spec: OpSpec, asked: Collection[str] = ()) -> tuple[str, ...]:
    """Return the implementations of the spec, the baselines where it has an eager one, and rivals.

    Rivals are those that are installed and need not be named, and those that are named, whose cells
    then say what is missing.
    """
    own = tuple(i.name for i in spec.implementations if not i.asked or i.name in asked)
    wanted = (*BASELINES, *(name for name in ASKED if name in asked))
    made = tuple(b for b in wanted if b not in own and _source(spec, b) is not None)
    found = rivals_of(spec).values()
    return (*own, *made, *(r.name for r in found if (r.version and not r.asked) or r.name in asked))


def if_named(spec: OpSpec) -> tuple[str, ...]:
    """Return the implementations and baselines that run only if they are named."""
    return (
        *(impl.name for impl in spec.implementations if impl.asked),
        *(name for name in ASKED if _source(spec, name) is not None),
    )


def versions(spec: OpSpec) -> tuple[str, ...]:
    """Return the versions of the operator's rivals that are installed, and the code of plug-ins."""
    there = [rival for rival in rivals_of(spec).values() if rival.version]
    given = filter(None, map(plugins.origin, (spec, *there)))
    return (*(str(rival.version) for rival in there), *(one.code for one in given))


def rivals_of(spec: OpSpec) -> dict[str, Rival]:
    """Return the rivals of an operator of the table or of a plug-in; of a user's file none."""
    if table.load().get(spec.name) is not spec and plugins.origin(spec) is None:
        return {}
    found, own = rivals.of(spec.name), (*(i.name for i in spec.implementations), *MADE, CEILING)
    for name in found.keys() & own:
        given = plugins.origin(found.pop(name))
        assert given, f"{spec.name} has an implementation and a rival {name}"
        plugins.refuse(given.entry, f"the name {name!r} is an implementation's of {spec.name}")
    return found


def role(spec: OpSpec, name: str) -> str:
    """Return the role of an implementation: the spec's, "rival", else "baseline"."""
    for impl in spec.implementations:
        if impl.name == name:
            return impl.role
    return rivals.ROLE if name in rivals_of(spec) else "baseline"


def identity(proof: Proof, spec: OpSpec, name: str, inputs: Inputs, direction: Direction) -> Proof:
    """Add who ran to a proof: the role, a rival's version, and what "auto" took."""
    rival = rivals_of(spec).get(name)
    return replace(
        proof,
        role=role(spec, name),
        version=rival.version if rival else None,
        chosen=_chosen(spec, name, inputs, direction),
    )


def _chosen(spec: OpSpec, name: str, inputs: Inputs, direction: Direction) -> str | None:
    fn = next((impl.fn for impl in spec.implementations if impl.name == name), None)
    if not isinstance(fn, partial) or fn.keywords != {"impl": "auto"}:
        return None
    try:
        told = getattr(fuseline.explain_choice(fn.func, **inputs), direction)
    except (TypeError, ValueError, RuntimeError):  # made of several, or its own call says why
        return None
    return f"{told.impl}, {told.why}"


def make(spec: OpSpec, name: str, device_type: str) -> Callable[..., Any]:
    """Return the callable of an implementation, baseline or rival, or raise Unsupported."""
    rival = rivals_of(spec).get(name)
    if rival is not None:
        return _load(rival, device_type)
    reason = unavailable(spec, name, device_type)
    impl = _source(spec, name)
    if reason or impl is None:
        raise Unsupported(reason)
    if name in (impl.name, ENABLED):
        return impl.fn
    return _script(impl.fn) if name == TORCHSCRIPT else _compile(impl.fn, device_type)


def around(name: str) -> AbstractContextManager[object]:
    """Return what must be open while an implementation is called, and may be opened again."""
    return Takeover() if name == ENABLED else nullcontext()


def unavailable(spec: OpSpec, name: str, device_type: str) -> str | None:
    """Return why an implementation, baseline or rival cannot run on such a device, or None."""
    rival = rivals_of(spec).get(name)
    if rival is not None:
        return rival.unavailable(device_type)
    impl = _source(spec, name)
    if impl is None:
        return f"operator {spec.name!r} has no eager implementation to make it from"
    return impl.unavailable(device_type) or (
        native.status().why_not(device_type) if name == ENABLED else None
    )


def _source(spec: OpSpec, name: str) -> Implementation | None:
    """Return the implementation of that name, or the one that a baseline is made from: eager; of
    `enabled` torch's own function, where the spec has it under another name.
    """
    own = {impl.name: impl for impl in spec.implementations}
    natives = (i for i in spec.implementations if i.role == "native" and not i.asked)
    return own.get(name) or (next(natives, spec.eager) if name == ENABLED else spec.eager)


def refuse(spec: OpSpec, name: str, inputs: Inputs, direction: Direction = "fwd") -> None:
    """Raise Unsupported for inputs that an implementation or rival is known not to take."""
    rival = rivals_of(spec).get(name)
    own = next((impl for impl in spec.implementations if impl.name == name), None)
    reason = rival.refuses(inputs) if rival else own and own.unsupported(direction, inputs)
    if reason:
        raise Unsupported(reason)


def _load(rival: Rival, device_type: str) -> Callable[..., Any]:
    reason = rival.unavailable(device_type)
    if reason:
        raise Unsupported(reason)
    try:
        return rival.load()
    except Exception as error:
        raise Unsupported(f"{rival.version} cannot be loaded: {describe(error)}") from error


def _script(fn: Callable[..., Any]) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            scripted: Callable[..., Any] = torch.jit.script(fn)
        except Exception as error:
            raise Unsupported(f"torch.jit.script refuses: {_last_line(error)}") from error
    return scripted


def _compile(fn: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    # Loaded here or by the worker: it takes as long as torch, and most processes go without.
    torch._dynamo.reset()
    if device_type == "cpu":
        # Inductor's pool of compilers starts up beside the timing and takes the cores from it.
        torch._inductor.config.compile_threads = 1
    return torch.compile(fn, fullgraph=True, dynamic=False)


def _last_line(error: Exception) -> str:
    """Return torch.jit's own sentence, which stands before the quoted source."""
    return describe(error).rstrip(":")


class CompileWatch:
    """Counts what dynamo compiles while it is open, over several openings.

    graphs: captured graphs; breaks: graph breaks. Only calls of one implementation may run
    inside, because dynamo's counters belong to the whole process.
    """

    def __init__(self) -> None:
        self.graphs = 0
        self.breaks = 0

    def __enter__(self) -> CompileWatch:
        self._before = _dynamo_counts()
        return self

    def __exit__(self, *_: object) -> None:
        graphs, breaks = _dynamo_counts()
        self.graphs += graphs - self._before[0]
        self.breaks += breaks - self._before[1]


def _dynamo_counts() -> tuple[int, int]:
    if "torch._dynamo" not in sys.modules:
        return 0, 0
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def compile_proof(proof: Proof, first: CompileWatch, timed: CompileWatch) -> Proof:
    """Add graphs and breaks up to the timing, and recompiles during it."""
    breaks = first.breaks + timed.breaks
    return replace(proof, graphs=first.graphs, breaks=breaks, recompiles=timed.graphs)


def compile_fault(proof: Proof) -> str:
    """Return why a compile cell is invalid, or ""."""
    if not proof.graphs:
        return "torch.compile captured no graph: eager ran"
    if proof.breaks:
        return f"torch.compile broke the graph {proof.breaks} times"
    if proof.recompiles:
        return f"torch.compile compiled {proof.recompiles} times while it was timed"
    return ""
