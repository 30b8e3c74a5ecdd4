"""Watches torch.compile: from a fresh state, without caches, what is compiled and why."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch._dynamo
import torch._inductor.config
from torch._dynamo import exc, utils
from torch._inductor.codegen.cpp import OuterLoopFusedSchedulerNode
from torch._inductor.graph import GraphLowering
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.scheduler import Scheduler, WhyNoFuse

from fuselab.fusion.ledger import Ledger
from fuselab.fusion.scheduler import SILENT, Graph, Refusal, examine

NO_CACHE_WARNING = "dynamo_pgo force disabled"
BREAK = "graph break"
TRACE_LOG = logging.getLogger("torch.__trace")
PHASES = ("dynamo", "AOT autograd", "inductor", "code generation and its compiler")


class Watch:
    """Open around the calls of a function: all it compiles is compiled here, and noted.

    What was compiled before is forgotten, and so is what was compiled here. Kernels of compiled
    graphs go to `ledger` while there is one.
    """

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self._graphs: dict[int, tuple[CompiledFxGraph, Graph]] = {}
        self._sizes: dict[int, list[torch.Size]] = {}
        self._refusals: list[Refusal] = []
        self._merged: set[int] = set()
        self._compilations: deque[Any] = deque()
        self._skipped: list[str] = []
        self._stack = ExitStack()

    def __enter__(self) -> Watch:
        torch._dynamo.reset()
        enter = self._stack.enter_context
        self._stack.callback(torch._dynamo.reset)
        enter(warnings.catch_warnings())
        warnings.filterwarnings("ignore", NO_CACHE_WARNING)
        enter(patch.object(TRACE_LOG, "handlers", _of_torch(TRACE_LOG.handlers)))
        # Only what the code generator makes anew is counted: a cached graph has no scheduler.
        enter(torch._inductor.config.patch(force_disable_caches=True))
        enter(patch.object(utils, "_compilation_metrics", self._compilations))
        for owner, name, replacement in self._hooks():
            enter(patch.object(owner, name, replacement))
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def breaks(self) -> tuple[str, ...]:
        """Return a text for each graph break; for a function left to eager, too."""
        broken = [_break(found.reason, found.user_stack) for found in utils.graph_break_reasons]
        failed = [
            f"{_code(found)} runs in eager: {_first_lines(found.fail_reason or found.fail_type)}"
            for found in self._compilations
            if found.fail_type and found.co_name
        ]
        return (*broken, *failed, *self._skipped)

    @property
    def captured(self) -> bool:
        """Whether torch.compile made a graph of anything, for any backend."""
        return any(found.graph_op_count for found in self._compilations)

    def recompiles(self) -> tuple[str, ...]:
        """Return a text for each compilation of a function that had been compiled."""
        return tuple(
            f"{_code(found)} because of {_first_lines(found.recompile_reason)}"
            for found in self._compilations
            if found.recompile_reason and found.co_name
        )

    def hints(self) -> tuple[str, ...]:
        """Return what torch advises for each graph break of `breaks` that it has a record of."""
        lines = (found.reason.splitlines() for found in utils.graph_break_reasons)
        return tuple(
            " ".join(line.strip().removeprefix("Hint: ") for line in those if "Hint:" in line)
            for those in lines
        )

    def limits(self) -> tuple[str, ...]:
        """Return a text for each function that had been compiled too often to be once more."""
        # Of such a compilation the record has its number, 0/8, and no function.
        names = {_frame(found): _code(found) for found in self._compilations if found.co_name}
        return tuple(
            f"{names.get(_frame(found), 'a function')} stays in eager from then on: "
            f"{_first_lines(found.recompile_reason)}"
            for found in self._compilations
            if found.recompile_reason and not found.co_name
        )

    def seconds(self) -> dict[str, float]:
        """Return the seconds of all compilations by phase."""
        ends = (
            "dynamo_cumulative_compile_time_us",
            "aot_autograd_cumulative_compile_time_us",
            "inductor_cumulative_compile_time_us",
            "inductor_code_gen_cumulative_compile_time_us",
        )
        # Each of these holds those after it.
        sums = [sum(getattr(c, end, None) or 0 for c in self._compilations) for end in ends]
        return {
            phase: (outer - inner) / 1e6
            for phase, outer, inner in zip(PHASES, sums, [*sums[1:], 0], strict=True)
        }

    def _hooks(self) -> Iterator[tuple[Any, str, Any]]:
        yield CompiledFxGraph, "__init__", self._made(CompiledFxGraph.__init__)
        yield CompiledFxGraph, "__call__", self._called(CompiledFxGraph.__call__)
        yield exc.SkipFrame, "__init__", self._skips(exc.SkipFrame.__init__)
        yield Scheduler, "can_fuse", self._asked(Scheduler.can_fuse)
        yield WhyNoFuse, "__call__", self._refused(WhyNoFuse.__call__)
        merge = OuterLoopFusedSchedulerNode.merge_outer_fusion_kernels
        yield OuterLoopFusedSchedulerNode, merge.__name__, self._merges(merge)

    def _made(self, init: Any) -> Any:
        def hook(compiled: CompiledFxGraph, *args: Any, **kwargs: Any) -> None:
            init(compiled, *args, **kwargs)
            graph = next(a for a in (*args, *kwargs.values()) if isinstance(a, GraphLowering))
            found = examine(graph, self._refusals, self._merged)
            # Held, so that no other object gets its id.
            self._graphs[id(compiled)] = compiled, found
            self._refusals, self._merged = [], set()

        return hook

    def _called(self, call: Any) -> Any:
        def hook(compiled: CompiledFxGraph, inputs: Sequence[Any]) -> Any:
            sizes = [found.shape for found in inputs if isinstance(found, torch.Tensor)]
            # The scheduler counted the bytes of the sizes that the graph was compiled at.
            same = sizes == self._sizes.setdefault(id(compiled), sizes)
            if self.ledger is None:
                return call(compiled, inputs)
            _, graph = self._graphs[id(compiled)]
            self.ledger.resized |= not same
            return self.ledger.run(graph, lambda given: call(compiled, given), inputs)

        return hook

    def _skips(self, init: Any) -> Any:
        # Until torch 2.12 a break inside a loop ends so, and is in no other record.
        def hook(error: Exception, *args: Any) -> None:
            init(error, *args)
            self._skipped += [_first_lines(str(a), 2) for a in args if BREAK in str(a)]

        return hook

    def _asked(self, can_fuse: Any) -> Any:
        def hook(scheduler: Any, first: Any, second: Any, *args: Any, **kwargs: Any) -> Any:
            before = len(self._refusals)
            answer = can_fuse(scheduler, first, second, *args, **kwargs)
            if not answer and len(self._refusals) == before:
                self._refusals.append(Refusal(first.get_name(), second.get_name(), SILENT))
            return answer

        return hook

    def _refused(self, call: Any) -> Any:
        def hook(why: WhyNoFuse, reason: str, *args: Any) -> Any:
            call(why, reason, *args)
            self._refusals.append(Refusal(why.name1, why.name2, reason % args))

        return hook

    def _merges(self, merge: Any) -> Any:
        def hook(node: Any, *args: Any, **kwargs: Any) -> Any:
            self._merged.add(id(node))
            return merge(node, *args, **kwargs)

        return hook


def _of_torch(handlers: Sequence[logging.Handler]) -> list[logging.Handler]:
    """Return torch's own handlers (TORCH_TRACE): pytest's would print every record of a failure."""
    return [found for found in handlers if type(found).__module__.startswith("torch.")]


def _break(reason: str, stack: Sequence[traceback.FrameSummary]) -> str:
    places = " > ".join(f"{Path(s.filename).name}:{s.lineno} in {s.name}" for s in stack)
    code = f": {stack[-1].line}" if stack else ""
    return f"{_first_lines(reason)} | {places}{code}"


def _frame(found: Any) -> str:
    return str(found.compile_id).partition("/")[0]


def _code(found: Any) -> str:
    return f"{found.co_name} ({Path(found.co_filename).name}:{found.co_firstlineno})"


def _first_lines(text: str | None, always: int = 1) -> str:
    """Return what happened and its explanation, without hints, links and stacks."""
    lines = [" ".join(line.split()) for line in (text or "").splitlines()]
    kept = [line for line in lines[always : always + 1] if line.startswith("Explanation:")]
    return " ".join([*lines[:always], *kept])
