"""Notes the kernels of a call as torch dispatches them, those of compiled graphs included."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.library
from torch import Tensor
from torch._library.custom_ops import OPDEFS
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

import fuselab
import fuseline
from fuselab.fusion.record import EAGER, Kernel, Unfused
from fuselab.fusion.regions import Regions, nbytes, storage, tensors
from fuselab.fusion.scheduler import Graph
from fuseline.core import native

# Operators that give memory and touch none, and those that write an argument without reading it.
ALLOCATIONS = {"empty", "empty_like", "empty_strided", "empty_permuted", "new_empty"}
ALLOCATIONS |= {"new_empty_strided"}
OVERWRITES = {"copy_", "fill_", "zero_"}
GENERIC_KEYS = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")
OWN_FOLDERS = tuple(f"{Path(m.__file__ or '').parent}/" for m in (torch, fuselab, fuseline))


class Ledger(TorchDispatchMode):
    """Open around one call: every operator that is no view and no allocation is a kernel.

    An operator reads each distinct tensor argument once and writes each new result once. Compiled
    graphs keep running as such and are noted by `run`. Composite operators and custom operators
    written in Python count as what they run.
    """

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []
        self.unfused: list[Unfused] = []
        self.graphs = 0
        self.resized = False
        self._made: set[int] = set()
        # Storages of the arguments of the custom operator whose kernel runs.
        self._given: set[int] | None = None
        self._reads, self._writes = Regions(), Regions()
        self._inside = False
        self._copied = native.copied_bytes()

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    # A function that torch.compile leaves to eager has it look at all that it calls, this included.
    @torch.compiler.disable
    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside:
            return func(*args, **kwargs)
        with self:
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        return self._operator(func, args, kwargs)

    def run(self, graph: Graph, call: Callable[[Sequence[Any]], Any], inputs: Sequence[Any]) -> Any:
        """Run a compiled graph and note its kernels."""
        given = dict(zip(graph.inputs, inputs, strict=False))
        held = {name: t for name, t in given.items() if isinstance(t, Tensor)}
        for regions, counts in ((self._reads, graph.reads), (self._writes, graph.writes)):
            for name, count in counts.items():
                if name in held and storage(held[name]) not in self._made:
                    regions.add(held[name], count)
        self._inside = True
        try:
            results = call(inputs)
        finally:
            self._inside = False
        self._keep(tensors(results), held.values())
        first = len(self.kernels)
        self.kernels += graph.kernels
        self.unfused += [
            Unfused(first + u.first, first + u.second, u.reason) for u in graph.unfused
        ]
        self.graphs += 1
        return results

    @property
    def moved(self) -> int:
        """Bytes that all kernels read and wrote."""
        return sum((k.read or 0) + (k.written or 0) for k in self.kernels)

    def least(self, results: Any) -> int:
        """Return the bytes of each input read once, and of each result and changed input."""
        for tensor in self.new(results):
            self._writes.add(tensor, nbytes(tensor))
        return self._reads.nbytes + self._writes.nbytes

    def new(self, results: Any) -> list[Tensor]:
        """Return the tensors among results whose memory the call made."""
        return [t for t in tensors(results) if storage(t) in self._made]

    def _operator(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        before = len(self.kernels)
        arguments = tensors((args, kwargs))
        held = {storage(t) for t in arguments}
        body = None if func.namespace == "aten" else _body(func, arguments)
        if body is None:
            results = func(*args, **kwargs)
        else:
            around, self._given = self._given, held
            with self:
                results = body(*args, **kwargs)
            self._given = around
        read, written = _roles(func, args, kwargs)
        if self._given is not None:  # a kernel in C++ allocates unseen
            self._made |= {storage(t) for t in written} - self._given
        fresh = [t for t in tensors(results) if storage(t) not in held]
        self._keep(fresh, arguments)
        seen = len(self.kernels) > before
        self._note_copies()
        if not (seen and _is_python(func, arguments)) and _works(func, arguments, fresh):
            self._note(func, read, [*written, *fresh])
        return results

    def _note_copies(self) -> None:
        """Note what the binary copied by itself, which torch does not dispatch."""
        before, self._copied = self._copied, native.copied_bytes()
        if copied := self._copied - before:
            self.kernels.append(Kernel("copy_", EAGER, copied, copied, place=_place()))

    def _note(self, func: OpOverload, read: list[Tensor], written: list[Tensor]) -> None:
        for tensors_, regions in ((read, self._reads), (written, self._writes)):
            for tensor in tensors_:
                if storage(tensor) not in self._made:
                    regions.add(tensor, nbytes(tensor))
        sizes = Regions(read).nbytes, Regions(written).nbytes
        self.kernels.append(Kernel(operator_name(func), EAGER, *sizes, place=_place()))

    def _keep(self, results: Iterable[Tensor], arguments: Iterable[Tensor]) -> None:
        known = {storage(t) for t in arguments}
        self._made |= {storage(t) for t in results} - known


def operator_name(func: Any) -> str:
    """Return an operator's name without its overload, and without ATen's namespace."""
    if not isinstance(func, OpOverload):
        return str(getattr(func, "__name__", func))
    return str(func._schema.name.removeprefix("aten::"))


def _works(func: OpOverload, arguments: list[Tensor], fresh: list[Tensor]) -> bool:
    """Say whether an operator reads or writes memory; views, allocations and notes do not."""
    if operator_name(func) in ALLOCATIONS or torch.Tag.inplace_view in func.tags:
        return False
    if func._schema.is_mutable or fresh:
        return bool(arguments or fresh)
    return bool(arguments) and not any("Tensor" in str(r.type) for r in func._schema.returns)


def _roles(
    func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensor arguments that an operator reads, and those that it writes."""
    read: list[Tensor] = []
    written: list[Tensor] = []
    for place, argument in enumerate(func._schema.arguments):
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if writes:
            written += tensors(value)
        if not (writes and (argument.kwarg_only or operator_name(func) in OVERWRITES)):
            read += tensors(value)
    return read, written


def _body(func: OpOverload, arguments: list[Tensor]) -> Callable[..., Any] | None:
    """Return what runs a custom operator so that the operators inside it are seen, if anything.

    A kernel that Python registered past `torch.library.custom_op` cannot be looked into.
    """
    device = arguments[0].device.type if arguments else "cpu"
    if func.name() in OPDEFS:
        kernels = OPDEFS[func.name()]._backend_fns
        body: Callable[..., Any] | None = kernels.get(device, kernels.get(None))
        return body
    if _is_python(func, arguments) or any(t.layout is not torch.strided for t in arguments):
        return None
    key = getattr(torch._C.DispatchKey, _key(arguments))
    return lambda *args, **kwargs: func._op_dk(key, *args, **kwargs)


def _is_python(func: OpOverload, arguments: list[Tensor]) -> bool:
    """Say whether the kernel that runs was registered from Python."""
    name = func._schema.name.replace("::", "/")
    if func._schema.overload_name:
        name += f".{func._schema.overload_name}"
    return any(f"{name}/{key}" in torch.library._impls for key in (_key(arguments), *GENERIC_KEYS))


def _key(arguments: list[Tensor]) -> str:
    device = arguments[0].device.type if arguments else "cpu"
    return str(torch._C._dispatch_key_for_device(device))


def _place() -> str:
    """Return the innermost line that is neither torch's nor ours."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FOLDERS):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
