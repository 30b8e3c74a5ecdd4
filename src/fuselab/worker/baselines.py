"""The implementations of one group, with the baselines that the lab makes from eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo.utils import counters

from fuselab.worker.protocol import Proof, describe
from fuseline.core.spec import OpSpec

TORCHSCRIPT = "torchscript"
COMPILE = "compile"
BASELINES = (TORCHSCRIPT, COMPILE)


class Unsupported(Exception):
    """The implementation does not exist here; the text is the reason."""


def names(spec: OpSpec) -> tuple[str, ...]:
    """Return the implementations of the spec, and the baselines where it has an eager one."""
    own = tuple(impl.name for impl in spec.implementations)
    return own + tuple(b for b in BASELINES if spec.eager is not None and b not in own)


def role(spec: OpSpec, name: str) -> str:
    """Return the role of an implementation: the spec's, else "baseline"."""
    return next((i.role for i in spec.implementations if i.name == name), "baseline")


def make(spec: OpSpec, name: str, device_type: str) -> Callable[..., Any]:
    """Return the callable of an implementation or baseline, or raise Unsupported."""
    own = {impl.name: impl for impl in spec.implementations}
    impl = own.get(name, spec.eager)
    if impl is None:
        raise Unsupported(f"operator {spec.name!r} has no eager implementation to make it from")
    reason = impl.unavailable(device_type)
    if reason:
        raise Unsupported(reason)
    if name == impl.name:
        return impl.fn
    return _script(impl.fn) if name == TORCHSCRIPT else _compile(impl.fn, device_type)


def _script(fn: Callable[..., Any]) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            scripted: Callable[..., Any] = torch.jit.script(fn)
        except Exception as error:
            raise Unsupported(f"torch.jit.script refuses: {_last_line(error)}") from error
    return scripted


def _compile(fn: Callable[..., Any], device_type: str) -> Callable[..., Any]:
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
    return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


def compile_proof(first: CompileWatch, timed: CompileWatch) -> Proof:
    """Return graphs and breaks up to the timing, and recompiles during it."""
    return {
        "graphs": first.graphs,
        "breaks": first.breaks + timed.breaks,
        "recompiles": timed.graphs,
    }


def compile_fault(proof: Proof) -> str:
    """Return why a compile cell is invalid, or ""."""
    if proof["graphs"] < 1:
        return "torch.compile captured no graph: eager ran"
    if proof["breaks"]:
        return f"torch.compile broke the graph {proof['breaks']} times"
    if proof["recompiles"]:
        return f"torch.compile compiled {proof['recompiles']} times while it was timed"
    return ""
