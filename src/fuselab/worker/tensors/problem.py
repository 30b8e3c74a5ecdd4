"""One group as tensors: the case, its inputs, the output gradients, and a copy to compare with."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from fuselab.model import Group
from fuselab.timers import Call
from fuselab.worker.operators import specs
from fuselab.worker.protocol import Emit
from fuselab.worker.tensors import inputs as make
from fuselab.worker.tensors.contents import fill, mix, overwrite
from fuseline.core.specs.spec import Case, Cost, Direction, Inputs, OpSpec
from fuseline.testing.oracle import accuracy

# A look at a set on a GPU costs as much as ten launches.
LOOKS = 3
Parts = dict[str, tuple[Tensor, Tensor]]
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class InputSet:
    """Inputs of one call; `dys` are the output gradients (None for the forward)."""

    inputs: Inputs
    dys: tuple[Tensor, ...] | None

    @property
    def given(self) -> dict[str, Tensor]:
        return make.tensors(self.inputs)

    @property
    def gradients(self) -> dict[str, Tensor]:
        return {f"dy{i}": dy for i, dy in enumerate(self.dys or ())}

    @property
    def tensors(self) -> dict[str, Tensor]:
        return self.given | self.gradients

    @property
    def nbytes(self) -> int:
        return make.nbytes(self.tensors.values())


@dataclass
class Problem:
    """What every implementation of a group is given.

    Implementations are checked on the first set, of which `origin` is a copy; they are timed on
    contents that they have not seen, in an order of the sets that changes.
    """

    spec: OpSpec
    case: Case
    group: Group
    direction: Direction
    dtype: torch.dtype
    device: torch.device
    sets: list[InputSet]
    eager_dtypes: dict[str, torch.dtype] = field(default_factory=dict)
    _route: list[int] = field(default_factory=list)
    _spare: InputSet | None = None
    _next: InputSet | None = None
    _mixed: dict[int, Parts] = field(default_factory=dict)

    @property
    def first(self) -> InputSet:
        """The set on which implementations are checked."""
        return self.sets[0]

    @property
    def cost(self) -> Cost:
        """Least traffic of one call, from the cost model or from inputs and outputs."""
        if self.spec.cost is not None:
            return self.spec.cost(self.origin.inputs, self.direction)
        read = self.origin.nbytes
        if self.direction == "fwd":
            with torch.no_grad():
                outputs = self.spec.reference(**self.origin.inputs)
            return Cost(read, make.nbytes(accuracy.as_tuple(outputs)))
        names = accuracy.gradient_names(self.spec, self.origin.inputs)
        return Cost(read, make.nbytes(self.origin.inputs[name] for name in names))

    @property
    def least_bytes(self) -> int:
        """What a call cannot do without, whatever the forward left a backward in place of inputs.

        To the gradient of a maximum, one bit an element says as much as the element.
        """
        if self.direction == "fwd":
            return self.cost.bytes
        gradients = (math.prod(shape) * dtype.itemsize for shape, dtype in self.expected.values())
        return make.nbytes(self.origin.dys or ()) + sum(gradients)

    @cached_property
    def origin(self) -> InputSet:
        inputs, dys = self.sets[0].inputs, self.sets[0].dys
        copied = {n: v.clone() if isinstance(v, Tensor) else v for n, v in inputs.items()}
        return InputSet(copied, dys and tuple(dy.clone() for dy in dys))

    def grow(self, count: int) -> None:
        """Have at least `count` input sets."""
        while len(self.sets) < count:
            self._route.append(len(self.sets))
            self.sets.append(self._make_set(len(self.sets)))

    def refresh(self) -> None:
        """Draw new contents into every set, so that no earlier call has seen them."""
        for i, held in enumerate(self.sets):
            drawn = self.draw()
            self.sets[i] = _fill(held, drawn, silent=bool(secrets.randbits(1)))
        # Parts of it come into sets that hold something else by then.
        self._spare, self._next = self._next or self.origin, drawn
        self._mixed.clear()

    def renew(self, count: int, shuffle: bool) -> None:
        """Change silently what the next `count` calls find, on sets in another order if asked."""
        if shuffle:
            secrets.SystemRandom().shuffle(self._route)
        spare = self._spare or self.origin
        self._mixed.clear()
        for i in self._route[:count]:
            held = self.sets[i]
            self._mixed[i] = {} if self.spec.structured else mix(held.given, spare.given)
            if not self._mixed[i]:
                drawn = self.draw()
                self.sets[i] = _fill(held, drawn, silent=True)
                self._mixed[i] = {n: (t, drawn.given[n]) for n, t in self.sets[i].given.items()}

    def renew_gradients(self, count: int) -> None:
        """Do the same to the output gradients of calls whose forward has run without them."""
        spare = self._spare or self.origin
        for i in self._route[:count]:
            parts = mix(self.sets[i].gradients, spare.gradients)
            if self.spec.settled and parts:
                self._settle(self.sets[i])
                parts = {name: (mine, mine.clone()) for name, (mine, _) in parts.items()}
            self._mixed[i] |= parts

    def _settle(self, given: InputSet) -> None:
        """Silently make output gradients 0 where, by inputs that changed, the gradient jumps."""
        assert self.spec.settled is not None
        dys = given.dys or ()
        for dy, settled in zip(dys, self.spec.settled(given.inputs, dys), strict=True):
            overwrite(dy.data, settled)

    def draw(self) -> InputSet:
        """Return a set of new contents that nobody can foresee."""
        return self._make_set(secrets.randbits(62))

    def place(self, source: InputSet, silent: bool = False) -> None:
        """Put these contents where the next single call finds them; `restore` ends it."""
        self.sets[self._route[0]] = _fill(self.sets[self._route[0]], source, silent)

    @property
    def next_set(self) -> InputSet:
        """The set of the next single call."""
        return self.sets[self._route[0]]

    @cached_property
    def gives_views(self) -> bool:
        """Whether the formula itself answers with the memory of an input."""
        if self.direction == "bwd":
            return False
        inputs, eager = self.origin.inputs, self.spec.eager
        able = eager is not None and not eager.unavailable(self.device.type)
        with torch.no_grad():
            outputs = accuracy.as_tuple(self.spec.reference(**inputs))
            if eager is not None and able:
                outputs += accuracy.as_tuple(eager.fn(**inputs))
        mine = {t.untyped_storage().data_ptr() for t in make.tensors(inputs).values()}
        return any(y.untyped_storage().data_ptr() in mine for y in outputs)

    def restore(self) -> None:
        """Put the contents on which implementations are checked back into the first set."""
        self.sets[0] = _fill(self.sets[0], self.origin)

    def misshapen(self, results: dict[str, Any]) -> str:
        """Return which result is no tensor, or not of the kind it should be, or ""."""
        names = (*results, *(name for name in self.expected if name not in results))
        for name in names:
            if name not in self.expected:
                return f"{name} is one result more than the reference has"
            result, wanted = results.get(name), self.expected[name]
            # A subclass may compute when it is read.
            if not isinstance(result, Tensor) or type(result) not in (Tensor, Parameter):
                return f"{name} is a {type(result).__name__}, expected a Tensor"
            if own := accuracy.replaced_methods(result):
                return f"{name} has its own {own}, expected a plain Tensor"
            shape, dtype = wanted
            if dtype != result.dtype and result.dtype == self.eager_dtypes.get(name):
                dtype = result.dtype
            came = (tuple(result.shape), result.dtype, result.device.type, result.layout)
            if came != (shape, dtype, self.device.type, torch.strided):
                return (
                    f"{name} has shape {came[0]}, {came[1]}, on {came[2]}, {came[3]}, "
                    f"expected {shape}, {dtype}, on {self.device.type}"
                )
        return ""

    def blank(self) -> list[Tensor]:
        """Return tensors of the kind of the results, not written."""
        kinds = self.expected.values()
        return [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in kinds]

    @cached_property
    def expected(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of each output, or of each gradient."""
        if self.direction == "fwd":
            named = {f"out{i}": y for i, y in enumerate(self._outputs(self.origin.inputs))}
        else:
            names = accuracy.gradient_names(self.spec, self.origin.inputs)
            named = {n: self.origin.inputs[n] for n in names}
        return {n: (tuple(t.shape), t.dtype) for n, t in named.items()}

    def overwritten(self) -> tuple[str, ...]:
        """Return the names of the tensors of the first set that changed, and put them right."""
        changed: list[str] = []
        pristine = self.origin.tensors
        for name, tensor in self.first.tensors.items():
            if not _same_bits(tensor, pristine[name]):
                changed.append(name)
                tensor.data = pristine[name].clone()
        return tuple(changed)

    @property
    def versions(self) -> dict[str, int]:
        """How often each tensor of the first set was written, as autograd counts it."""
        return {name: tensor._version for name, tensor in self.first.tensors.items()}

    def written(self) -> tuple[str, ...]:
        """Return the names of tensors that no longer hold what `renew` put into them.

        Looks at a few sets that nobody can foresee.
        """
        looked = secrets.SystemRandom().sample(sorted(self._mixed), min(LOOKS, len(self._mixed)))
        parts = [part for i in looked for part in self._mixed[i].items()]
        return tuple(
            dict.fromkeys(name for name, (mine, put) in parts if not _same_bits(mine, put))
        )

    def order(self, count: int, sets: int) -> list[int]:
        """Return the set of each call."""
        return [self._route[i % sets] for i in range(count)]

    def calls(self, fn: Callable[..., Any], count: int, sets: int) -> list[Call]:
        """Return `count` calls to time, over so many rotating sets.

        Backward calls hold their graph, built here: each of them can run once.
        """
        return [self.call_on(fn, self.sets[i]) for i in self.order(count, sets)]

    def named(self, output: Any) -> dict[str, Tensor]:
        """Return what a call of `calls` gave under the names that the checker uses."""
        if self.direction == "fwd":
            return {f"out{i}": y for i, y in enumerate(accuracy.as_tuple(output))}
        names = accuracy.gradient_names(self.spec, self.origin.inputs)
        return {n: g for n, g in zip(names, output, strict=True) if g is not None}

    def call_on(self, fn: Callable[..., Any], turn: InputSet, keep: bool = False) -> Call:
        """Return a call on one set; `keep` the graph of a backward and it can run again."""
        if self.direction == "fwd":
            return lambda: fn(**turn.inputs)
        names = accuracy.gradient_names(self.spec, turn.inputs)
        leaves = {n: turn.inputs[n].detach().requires_grad_() for n in names}
        ys = accuracy.as_tuple(fn(**{**turn.inputs, **leaves}))
        pairs = [(y, dy) for y, dy in zip(ys, turn.dys or (), strict=True) if y.requires_grad]
        outputs, seeds = [y for y, _ in pairs], [dy for _, dy in pairs]
        wanted = list(leaves.values())
        return lambda: torch.autograd.grad(
            outputs, wanted, seeds, retain_graph=keep, allow_unused=True
        )

    def _make_set(self, index: int) -> InputSet:
        key = self.group.key
        inputs = self.spec.inputs(
            self.case, self.dtype, self.device, make.generator(key, index, self.device)
        )
        if self.direction == "fwd":
            return InputSet(inputs, None)
        like = self.sets[0].dys if self.sets else self._outputs(inputs)
        # Not the generator of the inputs: who seeds another from that gets the same numbers.
        drawn = make.generator(f"{key} output gradients", index, self.device)
        return InputSet(inputs, accuracy.draw_dys(self.spec, inputs, like or (), drawn))

    def _outputs(self, inputs: Inputs) -> tuple[Tensor, ...]:
        with torch.no_grad():
            outputs = accuracy.as_tuple(self.spec.reference(**inputs))
        # The oracle may compute in fp64; implementations answer in the dtype of the case.
        return tuple(y.to(self.dtype) if y.is_floating_point() else y for y in outputs)


def build(group: Group, emit: Emit, spec: OpSpec | None = None) -> Problem:
    """Return the problem of a group with its first input set; `spec` stands for its source."""
    emit("start", "", "inputs")
    spec, case = specs.case(spec or specs.load(group.source)[group.op], group.case)
    direction: Direction = "bwd" if group.direction == "bwd" else "fwd"
    device = torch.device(group.device)
    dtype: torch.dtype = getattr(torch, group.dtype)
    problem = Problem(spec, case, group, direction, dtype, device, [])
    problem.grow(1)
    problem.origin  # noqa: B018 - before anybody can overwrite the set that it copies
    return problem


def rotation(problem: Problem, calls: int) -> int:
    """Return how many input sets to rotate through for blocks of so many calls."""
    return make.how_many(problem.origin.nbytes, problem.device, calls)


def _fill(into: InputSet, source: InputSet, silent: bool = False) -> InputSet:
    """Return `source` at the addresses of `into`."""
    held = into.tensors
    fill(held, source.tensors, silent)
    return InputSet({n: held.get(n, v) for n, v in source.inputs.items()}, into.dys)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    word = _WORDS.get(a.element_size())
    return torch.equal(a, b) if word is None else torch.equal(a.view(word), b.view(word))
