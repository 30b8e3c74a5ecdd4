"""OpSpec: the one row from which tests, gradients, lab cells and docs of an operator derive."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fuseline.core.selection.select import Selector, asked
from fuseline.core.selection.tuned import DIRECTIONS, Key, Table, Tile
from fuseline.core.specs import spec_fields as fields

Direction = Literal["fwd", "bwd"]
Role = Literal["ours", "eager", "native", "rival"]
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One problem size.

    name    as the command line and the records call it, such as "512x1024"
    args    the values that `OpSpec.make_inputs` needs
    suites  names of the suites it belongs to; "check" is what the checker takes, "quick" the demo
    """

    name: str
    args: Mapping[str, Any]
    suites: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        owner = f"case {self.name!r}"
        fields.text(owner, "name", self.name)
        if not isinstance(self.args, Mapping):
            raise fields.fault(owner, "args", repr(self.args), "a dict of what make_inputs needs")
        _set(self, "suites", fields.items(owner, "suites", self.suites, str, "text"))


@dataclass(frozen=True)
class Cost:
    """Least work of one call.

    bytes_read, bytes_written  each input read once, each output written once
    flops                      floating-point operations, a fused multiply-add counted as two
    """

    bytes_read: int
    bytes_written: int
    flops: int = 0

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written


@dataclass(frozen=True)
class Budget:
    """Accuracy an implementation must keep, in ULP of the output and in eps * max|gradient|.

    fp64_fwd_ulp, fp64_ratio    forward in fp64: ULP, or so many times eager's error
    fp64_grad_eps               gradients in fp64, in eps * max|gradient|
    fp32_ratio, fp32_floor      fp32: so many times eager's error, but at least the floor in ULP
    half_extra                  half types: eager's error and so many ULP more
    e4m3_fwd_ulp                float8_e4m3fn: ULP
    gradients                   whether outputs are judged as gradients are

    Forward: fp64 an absolute limit (and, where no formula keeps it, a ratio of eager's error),
    fp32 max(ratio * eager's error, floor), half types eager's + extra, e4m3 the nearest value: half
    an ULP, and 8 ULP of fp32 (2^-16 of e4m3's), since so near a tie a computation in fp32 may come
    out on the other side. Gradients: nowhere less than ratio * eager's, which shows where terms
    cancel. An operator whose outputs are `gradients` is judged as they are, forward too.
    """

    fp64_fwd_ulp: float = 8.0
    fp64_ratio: float = 0.0
    fp64_grad_eps: float = 8.0
    fp32_ratio: float = 2.0
    fp32_floor: float = 2.0
    half_extra: float = 1.0
    e4m3_fwd_ulp: float = 0.5 + 2.0**-16
    gradients: bool = False

    def held_by(self, role: str) -> Budget:
        """Return the limits in that role: where terms cancel, only ours must have digits left."""
        return self if role == "ours" else replace(self, gradients=True)


@dataclass(frozen=True)
class ErrorCase:
    """A call that must raise an error before anything is launched.

    name   of the case
    make   device -> keyword inputs of the call
    error  the type that must be raised
    match  words, every one of which must be in the message
    """

    name: str
    make: Callable[[torch.device], Inputs]
    error: type[Exception]
    match: tuple[str, ...]

    def __post_init__(self) -> None:
        owner = f"error case {self.name!r}"
        fields.function(owner, "make", self.make, "device")
        if not (isinstance(self.error, type) and issubclass(self.error, Exception)):
            raise fields.fault(owner, "error", repr(self.error), "a class of exceptions")
        _set(self, "match", fields.items(owner, "match", self.match, str, "text"))

    @classmethod
    def changed(
        cls, good: Inputs, name: str, error: type[Exception], *match: str, **change: Any
    ) -> ErrorCase:
        """Return a case of good inputs but for what `change` replaces, on the device that is asked
        for, but for meta tensors.
        """

        def make(device: torch.device) -> Inputs:
            given = good | change
            return {n: t.to(device) if _moves(t) else t for n, t in given.items()}

        return cls(name, make, error, match)


def _moves(t: Any) -> bool:
    return isinstance(t, Tensor) and not t.is_meta


def drawing(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> Callable[..., Tensor]:
    """Return random(*shape), normal numbers."""

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device, generator=generator)

    return random


def _always(device_type: str) -> str | None:
    return None


def _serves(direction: Direction, inputs: Inputs) -> str | None:
    return None


@dataclass(frozen=True)
class Implementation:
    """One way to compute the operator.

    name         as the command line and the records call it
    fn           fn(**inputs) -> output or tuple of outputs, differentiable through autograd; called
                 with the inputs' names as keywords
    role         "ours" (judged by the spec's budget), "eager" (the baseline), "native" (torch's own
                 operator) or "rival" (another project's)
    unavailable  device type -> the reason why it cannot run there, or None
    unsupported  (direction, inputs) -> the reason why it does not serve these, or None
    asked        whether it runs only if it is named
    """

    name: str
    fn: Callable[..., Any]
    role: Role = "ours"
    unavailable: Callable[[str], str | None] = _always
    unsupported: Callable[[Direction, Inputs], str | None] = _serves
    asked: bool = False

    def __post_init__(self) -> None:
        owner = f"implementation {self.name!r}"
        fields.one_of(owner, "role", self.role, get_args(Role))
        fields.function(owner, "fn", self.fn)
        fields.function(owner, "unavailable", self.unavailable, "device_type")


def _set(frozen: Any, name: str, value: Any) -> None:
    object.__setattr__(frozen, name, value)


def ours(public: Callable[..., Any], selector: Selector, *names: str) -> tuple[Implementation, ...]:
    """Return the implementations `names` of an operator, each through its public function."""
    return tuple(
        Implementation(
            name,
            partial(public, impl=name),
            unavailable=partial(selector.unavailable, name),
        )
        for name in names
    )


def provided(
    public: Callable[..., Any], selector: Selector, *names: str
) -> tuple[Implementation, ...]:
    """Return the implementations `names` that are another project's kernels behind an operator."""
    return tuple(
        replace(
            impl,
            role="native",
            unsupported=partial(_refusal, public, impl.name),
            asked=True,
        )
        for impl in ours(public, selector, *names)
    )


def _refusal(
    public: Callable[..., Any], name: str, direction: Direction, inputs: Inputs
) -> str | None:
    """Return why an implementation does not serve the public function called with inputs."""
    needed = DIRECTIONS if direction == "bwd" else DIRECTIONS[:1]
    told = asked(public, **inputs)
    if name not in told.selector.names:  # one that the call is handed to
        return f"{told.selector.op}, which is computed, has no {name!r}"
    device_type = told.call[0].device.type
    found = (told.selector.refusal(name, d, device_type, *told.call) for d in needed)
    return next(filter(None, found), None)


@dataclass(frozen=True)
class Tuning:
    """How the launch parameters of an implementation are found on the machine that is there.

    impl        the implementation, whose tables lie in the folder `shipped`
    rows        row lengths that get an entry each, rising
    candidates  (direction, bytes of an element, row; None: longer than all) -> what is worth trying
    cases       row -> problem sizes in which tiles are timed, all on rows of that length
    proofs      row -> more problem sizes that a tile must be right in
    call        tile -> the operator with it: the forward without grad, the backward with
    """

    impl: str
    shipped: Path
    rows: tuple[int, ...]
    candidates: Callable[[Direction, int, int | None], tuple[Tile, ...]]
    cases: Callable[[int | None], tuple[Case, ...]]
    proofs: Callable[[int | None], tuple[Case, ...]]
    call: Callable[[Tile], Callable[..., Any]]

    @property
    def classes(self) -> tuple[int | None, ...]:
        return (*self.rows, None)

    def tiles(self, key: Key, row: int | None, present: Table) -> dict[str, Tile]:
        """Return the tiles to compare, by their names as implementations; the present one first."""
        direction: Direction = "bwd" if key[0] == "bwd" else "fwd"
        # Any length beyond the last class has the tile of all others there.
        now = present.tile(*key, self.rows[-1] + 1 if row is None else row)
        tiles = dict.fromkeys((now, *self.candidates(direction, key[1], row)))
        return {f"{self.impl}-{tile}": tile for tile in tiles}


@dataclass(frozen=True)
class OpSpec:
    """What an operator is, how to try it, and what it must cost.

    name             the operator, as the command line and the records call it
    formula          one line of maths, for the docs
    reference        fn(**inputs) on fp64 inputs: the oracle, differentiable, never a fallback
    implementations  every way to compute it; the one with role "eager" is the yardstick from
                     which the lab makes its `torchscript` and `compile` baselines
    make_inputs      (case, dtype, device, generator) -> keyword inputs, random, contiguous
                     or views of memory of their own
    differentiable   names of the inputs that have gradients
    cases            problem sizes with their suites
    dtypes           torch dtypes it accepts
    relayout         names of the inputs that the checker also tries in odd memory layouts; None:
                     all floating tensors
    contiguous       whether outputs and gradients must be contiguous whatever the inputs' layout,
                     but for those of `keeps_layout`
    keeps_layout     name of the input whose memory layout its gradient and outputs of its shape
                     must have, as torch.empty_like has it; "": of none
    row_inputs       names of the inputs whose leading dimensions are independent rows, so that
                     the oracle can work in chunks; gradients of the others sum over chunks
    row_ndim         trailing dimensions that make one row
    row_values       names of those of which a row has one element, without a dimension of its own
    scores           names of those whose exponentials are summed, which masks fill with -Inf
    longdouble       (direction, dy, **numpy longdouble inputs) -> outputs ("fwd", dy None) or
                     gradients in the order of `differentiable` ("bwd"): the oracle for fp64
    added            (**inputs) -> what the first output adds last, which may cancel the rest: its
                     error counts in ULP of the larger of the two; None, also given: of the output
    settled          (inputs, dys) -> dys with 0 where the gradient jumps (the argument of a ReLU is
                     near 0), so that results that differ by a rounding have one gradient; None: as
                     they are drawn
    separate         (inputs) -> names of those whose first dimension, as that of all results and
                     of their gradients, holds problems that know nothing of one another, (): none.
                     Of expensive ones the lab checks all in the first call, some in timed calls
    structured       whether a mixture of two draws would be no input (sorted, symmetric): never mix
    cost             (inputs, direction) -> Cost; None: bytes of inputs and outputs
    budget           accuracy limits
    error_cases      bad inputs and the errors they must raise
    magnitudes       factors and offsets by which inputs are made large, small, and far from zero
    suite_dtypes     the dtypes of a suite that does not take all
    tuning           how `fuselab tune` finds launch parameters; None: there are none to find
    """

    name: str
    reference: Callable[..., Any]
    implementations: tuple[Implementation, ...]
    make_inputs: Callable[[Case, torch.dtype, torch.device, torch.Generator], Inputs]
    cases: tuple[Case, ...]
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    differentiable: tuple[str, ...] = ()
    relayout: tuple[str, ...] | None = None
    contiguous: bool = False
    keeps_layout: str = ""
    row_inputs: tuple[str, ...] = ()
    row_ndim: int = 1
    row_values: tuple[str, ...] = ()
    scores: tuple[str, ...] = ()
    longdouble: Callable[..., tuple[Any, ...]] | None = None
    added: Callable[..., Any] | None = None
    settled: Callable[[Inputs, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]] | None = None
    separate: Callable[[Inputs], tuple[str, ...]] | None = None
    structured: bool = False
    formula: str = ""
    cost: Callable[[Inputs, Direction], Cost] | None = None
    budget: Budget = field(default_factory=Budget)
    error_cases: tuple[ErrorCase, ...] = ()
    magnitudes: tuple[tuple[float, float], ...] = ((2.0**-12, 0.0), (2.0**12, 0.0), (1.0, 256.0))
    suite_dtypes: Mapping[str, tuple[torch.dtype, ...]] = field(default_factory=dict)
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        owner = f"operator {fields.text('operator', 'name', self.name)!r}"
        kinds = {
            "implementations": (Implementation, "Implementation"),
            "cases": (Case, "Case"),
            "dtypes": (torch.dtype, "torch.dtype"),
            "error_cases": (ErrorCase, "ErrorCase"),
        } | dict.fromkeys(self._input_names, (str, "text"))
        for name, (kind, what) in kinds.items():
            _set(self, name, fields.items(owner, name, getattr(self, name), kind, what))
        for name in ("implementations", "cases"):
            for item in getattr(self, name):
                fields.text(owner, f"{name}: name", item.name)
            fields.unique(owner, name, (item.name for item in getattr(self, name)))
        fields.function(owner, "reference", self.reference)
        fields.function(owner, "make_inputs", self.make_inputs, "case, dtype, device, generator")
        called = {"cost": "inputs, direction", "separate": "inputs", "settled": "inputs, dys"}
        for name, takes in called.items():
            if (function := getattr(self, name)) is not None:
                fields.function(owner, name, function, takes)
        kept = {"budget": Budget, "row_ndim": int, "keeps_layout": str}
        kept |= dict.fromkeys(("contiguous", "structured"), bool)
        for name, kind in kept.items():
            if not isinstance(value := getattr(self, name), kind):
                raise fields.fault(owner, name, repr(value), f"a {kind.__name__}")
        self._check_names(owner)

    def _check_names(self, owner: str) -> None:
        """Raise for names of what the spec does not have, as far as it says what it has."""
        takes = fields.parameters(self.reference)
        for name in self._input_names if takes is not None else ():
            for given in getattr(self, name):
                fields.one_of(owner, name, given, takes or ())
        for suite, dtypes in self.suite_dtypes.items():
            known = [str(dtype) for dtype in self.dtypes]
            for dtype in fields.items(owner, "suite_dtypes", dtypes, torch.dtype, "torch.dtype"):
                fields.one_of(owner, f"suite_dtypes: {suite}", str(dtype), known)

    @property
    def _input_names(self) -> tuple[str, ...]:
        """The fields that name inputs."""
        names = ("differentiable", "row_inputs", "row_values", "scores", "relayout")
        return names if self.relayout is not None else names[:-1]

    def inputs(
        self, case: Case, dtype: torch.dtype, device: torch.device, generator: torch.Generator
    ) -> Inputs:
        """Return the inputs that make_inputs makes; OpSpecError if the spec's names are others."""
        owner = f"operator {self.name!r}, case {case.name!r}"
        made = self.make_inputs(case, dtype, device, generator)
        found = fields.inputs(owner, made, self.reference)
        for name in self._input_names:
            floating = name == "differentiable"
            given = getattr(self, name)
            fields.tensor_names(owner, name, given, found, self.reference, floating)
        return found

    def implementation(self, name: str) -> Implementation:
        for impl in self.implementations:
            if impl.name == name:
                return impl
        have = ", ".join(i.name for i in self.implementations)
        raise KeyError(f"operator {self.name!r} has no implementation {name!r}; it has: {have}")

    @property
    def eager(self) -> Implementation | None:
        return next((i for i in self.implementations if i.role == "eager"), None)

    @property
    def suites(self) -> tuple[str, ...]:
        return tuple(sorted({s for c in self.cases for s in c.suites}))
