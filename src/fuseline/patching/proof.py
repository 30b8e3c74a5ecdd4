"""What of a module's calls our kernels give too: shown on probes, cell by cell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import torch
from torch.nn import Module
from torch.utils._python_dispatch import TorchDispatchMode

from fuseline.core.inputs.arguments import DTYPES
from fuseline.patching.form import TORCHS, Form
from fuseline.patching.probe import (
    Differs,
    Probe,
    Twin,
    Unlike,
    autocast,
    channels_last,
    neutral,
    sliced,
    transposed,
)

# Number of dimensions and dtype of x, to which dtype autocast goes, module.training.
Cell = tuple[int, torch.dtype, torch.dtype | None, bool]

# Those of x that are tried, and leading dimensions by their number.
DIMS = (2, 3, 1, 4, 5)
LEADS = ((), (13,), (2, 7), (2, 3, 2), (2, 1, 3, 2))
# A leading dimension: at least, and elements of x if that is more.
LONG, MOST_OF_LONG = 130, 2**16
LAYOUTS = (None, transposed, sliced, channels_last)
AUTOCASTS = (None, torch.bfloat16, torch.float16)
# Most elements of a probe, one of whose leading dimensions is as long as the norm's own.
MOST_ON_A_CPU, MOST_ELSEWHERE = 2**20, 2**24


@dataclass(frozen=True)
class Proof:
    """A form, and the calls in which it was shown to give what the module gives.

    square   also where a leading dimension of x is as long as the norm's own
    strides  also where the dims of x are not in the order of its memory, as of a transposed x:
             the result has the strides that the module gives it
    missing  which modes and numbers of dimensions are not in `cells`, and why
    """

    form: Form
    cells: frozenset[Cell]
    square: bool
    strides: bool
    missing: tuple[str, ...] = ()


def prove(
    module: Module, own: type[Module], made: type[Module], forms: list[Form], device: torch.device
) -> Proof | str:
    """Return what was shown of the form that a module has, or why it has none of them.

    own   its class, without ours
    made  its class, with ours, which its own forward may ask for
    """
    errors: list[Unlike] = []
    with neutral(device), _uncompiled():
        for form in forms:
            try:
                for kind in (own, made):
                    _Trial(Twin(module, own, module.training, kind), form, device).resembles()
            except Unlike as error:
                errors.append(error)
                continue
            proof = _modes(module, own, form, device)
            return proof if proof.cells else "; ".join(proof.missing)
    differ = [e for e in errors if isinstance(e, Differs)]
    return str(min(differ, key=lambda e: e.gap) if differ else errors[0])


def _modes(module: Module, own: type[Module], form: Form, device: torch.device) -> Proof:
    cells: set[Cell] = set()
    square, strides, missing = True, True, []
    for training in (module.training, not module.training):
        mode = "training" if training else "eval"
        trial = _Trial(Twin(module, own, training), form, device)
        try:
            dims, whole = trial.mode()
        except Unlike as error:
            missing.append(f"in {mode} {error}")
            continue
        if len(dims) < len(trial.dims):
            some = " and ".join(str(n) for n in sorted(dims))
            missing.append(f"in {mode} it is the norm of x of {some} dimensions alone")
        square, strides = square and whole, strides and trial.strides
        cells |= {(*cell, training) for cell in trial.cells(dims)}
    return Proof(form, frozenset(cells), square, strides, tuple(missing))


class _Trial:
    """One form against a module in one mode. Its methods raise what speaks against it."""

    def __init__(self, twin: Twin, form: Form, device: torch.device) -> None:
        self.twin, self.form, self.device = twin, form, device
        self.own_dims = len(form.shape)
        self.long = max(LONG, MOST_OF_LONG // prod(form.shape))
        self.dims = [n for n in DIMS if n >= self.own_dims]
        self.strides = True

    def resembles(self) -> None:
        """Raise unless the module gives the norm for an x."""
        errors = []
        for n in self.dims:
            try:
                self._check(self._lead(n))
                return
            except Differs:
                raise
            except Unlike as error:
                errors.append(error)
        raise errors[0]

    def mode(self) -> tuple[list[int], bool]:
        """Return the numbers of dimensions that are proven in fp32, and whether `square`.

        Raise if values differ for any: what is another function for some x is not the norm.
        """
        self._refuse_random()
        found, errors = [], []
        for n in self.dims:
            lead = self._lead(n)
            ones = (1,) * len(lead)
            shapes = {lead, ones, (0,) * len(lead)}
            if lead:
                shapes |= {(*ones[1:], self.long), (self.long, *ones[1:])}
            try:
                for shape in shapes:
                    self._check(shape)
                    self._check(shape, extreme=True)
            except Differs:
                raise
            except Unlike as error:
                errors.append(error)
                continue
            self._other_layouts(lead)
            found.append(n)
        if not found:
            raise errors[0]
        found, square = self._squares(found)
        if names := self.twin.written():
            raise Unlike(f"its forward writes to its {', '.join(names)}")
        return found, square

    def cells(self, dims: list[int]) -> Iterator[tuple[int, torch.dtype, torch.dtype | None]]:
        """Give what is proven in each dtype, with and without autocast."""
        for dtype, to in product(DTYPES, AUTOCASTS):
            if self._holds(dims[0], dtype, to, extreme=True):
                yield from ((n, dtype, to) for n in dims if self._holds(n, dtype, to))

    def _holds(
        self, dims: int, dtype: torch.dtype, to: torch.dtype | None, extreme: bool = False
    ) -> bool:
        try:
            with autocast(self.device, to):
                self._check(self._lead(dims), dtype, extreme, gradients=to is None)
        except Unlike:
            return False
        return True

    def _lead(self, dims: int) -> tuple[int, ...]:
        return LEADS[dims - self.own_dims]

    def _check(
        self,
        lead: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        extreme: bool = False,
        gradients: bool = True,
        when: str = "",
    ) -> None:
        probe = self._probe(lead, dtype, extreme)
        probe.check(self.twin, gradients and not extreme, when)

    def _probe(self, lead: tuple[int, ...], *kind: Any) -> Probe:
        return Probe(self.form, lead, self.device, *kind)

    def _other_layouts(self, lead: tuple[int, ...]) -> None:
        """Raise if the layout of x or inference mode make another function of it."""
        for layout in LAYOUTS:
            probe = self._probe(lead, torch.float32, False, layout)
            try:
                with torch.inference_mode(layout is None):
                    probe.check(self.twin)
                    self.strides = self.strides and probe.same_strides(self.twin)
            except Unlike as error:
                if error.__cause__ is None:  # else a forward that takes contiguous tensors alone
                    raise

    def _squares(self, dims: list[int]) -> tuple[list[int], bool]:
        """Return the dims without those in which x may be taken for its transpose."""
        if self.twin.own in TORCHS:  # documented to norm the last dimensions of any x
            return dims, True
        (n,) = self.form.shape if self.own_dims == 1 else (prod(self.form.shape),)
        most = MOST_ON_A_CPU if self.device.type == "cpu" else MOST_ELSEWHERE
        if n * n > most:
            return dims, False
        found = []
        for d in dims:
            leads = len(self._lead(d))
            try:
                for place in range(leads):
                    lead = tuple(n if i == place else 1 for i in range(leads))
                    self._check(lead, gradients=False, when=f" for x of shape {(*lead, n)}")
            except Differs:
                raise
            except Unlike:
                continue
            found.append(d)
        return found, True

    def _refuse_random(self) -> None:
        cpu = torch.get_rng_state()
        gpu = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        for n in self.dims:
            probe = self._probe(self._lead(n))
            with _Randomness() as seen:
                try:
                    probe.check(self.twin)
                    break
                except Unlike:
                    continue  # said where it matters
        if seen.names:
            torch.set_rng_state(cpu)
            if gpu is not None:
                torch.cuda.set_rng_state(gpu, self.device)
            raise Unlike(f"its forward draws random numbers ({', '.join(sorted(seen.names))})")


class _Randomness(TorchDispatchMode):
    """Notes the operators that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.names.add(func.name())
        return func(*args, **(kwargs or {}))


def _uncompiled() -> Any:
    """Return what runs a forward that is compiled in eager: shapes of probes are many."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")
