"""Where the steps of a script are: at its marks, its optimizer's steps, or calls of its modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from fuselab.scan.script import marks

MARKS, OPTIMIZER, CALLS = "marks", "optimizer", "calls"
MEANING = {
    MARKS: "fuselab.scan.step() of the script",
    OPTIMIZER: "from one optimizer.step() to the next",
    CALLS: "calls of a module that no other module calls",
}
# Ours in a profile, around the steps of optimizers.
OPTIMIZING = "fuselab.scan optimizer"


class Steps:
    """Hears of steps and tells of them.

    kind    MARKS, OPTIMIZER or CALLS; "": what the script turns out to have, in this order
    began   called when a step begins
    ended   called when it has ended

    `roots` holds the modules that are called by no other, `seen` how many steps there were of each
    kind. Calls of modules are steps only where the script makes no optimizer.
    """

    def __init__(self, kind: str, began: Callable[[], None], ended: Callable[[], None]) -> None:
        self.kind, self._began, self._ended = kind, began, ended
        self._fixed = bool(kind)
        self.roots: list[Module] = []
        self.seen = dict.fromkeys(MEANING, 0)
        self._depth = self._optimizers = 0
        self._first: Any = None  # the optimizer whose steps count
        self._handles: list[Any] = []
        self._modules: list[Any] = []

    def __enter__(self) -> Steps:
        marks.listener = _Marks(self)
        self._own_init, self._own_hook = Optimizer.__init__, Optimizer.profile_hook_step
        steps = self

        def init(optimizer: Any, *args: Any, **options: Any) -> None:
            steps._optimizers += 1
            if steps.kind == CALLS and not steps._fixed:  # calls before the training
                steps.kind = ""
            steps._own_init(optimizer, *args, **options)

        # Torch wraps the step of each class of optimizers in an annotation for profilers. A profile
        # that begins or ends inside of one may crash: ours is around it.
        Optimizer.__init__ = init  # type: ignore[method-assign, assignment]
        Optimizer.profile_hook_step = staticmethod(self._around)  # type: ignore[method-assign, assignment]
        self._watch_modules()
        return self

    def __exit__(self, *_: object) -> None:
        marks.listener = None
        Optimizer.__init__ = self._own_init  # type: ignore[method-assign, assignment]
        Optimizer.profile_hook_step = staticmethod(self._own_hook)  # type: ignore[method-assign, assignment]
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def settle(self) -> None:
        """Leave modules without the hooks by which their roots were found.

        While torch has hooks of all modules, chains of modules are not served.
        """
        if self._modules:
            for handle in self._modules:
                handle.remove()
            self._modules = []
            if self.kind == CALLS:
                for root in self.roots:
                    self._handles += [
                        root.register_forward_pre_hook(self._enters, prepend=True),
                        root.register_forward_hook(self._leaves, always_call=True),
                    ]

    def _watch_modules(self) -> None:
        of_all = torch.nn.modules.module
        self._modules = [
            of_all.register_module_forward_pre_hook(self._enters),
            of_all.register_module_forward_hook(self._leaves, always_call=True),
        ]

    def _is(self, kind: str) -> bool:
        """Say whether steps are of this kind, or are from now on."""
        self.seen[kind] += 1
        if not self.kind and not (kind == CALLS and self._optimizers):
            self.kind = kind
        elif kind == MARKS and self.kind != MARKS and not self._fixed:
            self.kind = MARKS
        return self.kind == kind

    def _enters(self, module: Module, given: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth += 1
        if self._depth == 1:
            if not any(module is root for root in self.roots):
                self.roots.append(module)
            if self._is(CALLS):
                self._began()

    def _leaves(self, module: Module, given: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._depth -= 1
        if self._depth == 0 and self.kind == CALLS:
            self._ended()

    def _around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return what an optimizer's class has in the place of its step."""
        hooked = self._own_hook(step)

        @wraps(step)
        def around(optimizer: Any, *args: Any, **options: Any) -> Any:
            with torch.autograd.profiler.record_function(OPTIMIZING):
                result = hooked(optimizer, *args, **options)
            self._optimized(optimizer)
            return result

        return around

    def _optimized(self, optimizer: Any) -> None:
        if self._first is None:
            self._first = optimizer
            if self._is(OPTIMIZER):
                self._began()
        elif optimizer is self._first and self._is(OPTIMIZER):
            self._ended()
            self._began()


class _Marks:
    def __init__(self, steps: Steps) -> None:
        self._steps = steps

    def begin(self) -> None:
        if self._steps._is(MARKS):
            self._steps._began()

    def end(self) -> None:
        if self._steps.kind == MARKS:
            self._steps._ended()
