"""The contract of an operator that is a convolution and what follows it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.nn import Parameter
from torch.overrides import handle_torch_function

from fuseline.core.convolutions import geometry
from fuseline.core.inputs import arguments
from fuseline.core.inputs.batching import move_batch_dim_to_front, unbatched
from fuseline.core.registration import contract, operator
from fuseline.core.selection.rules import DTYPE, Fact
from fuseline.core.selection.select import Selector

Function = Callable[..., Any]
_MOST_KNOWN = 4096
FACTS = {
    DTYPE: Fact(lambda x, *args: x.dtype),
    "kernel": Fact(lambda x, weight, *args: max(weight.shape[2:]), (1, 3, 5, 7)),
    "groups": Fact(lambda *args: args[-1], (1, 32)),
    "channels_last": Fact(
        lambda x, weight, *args: geometry.memory_format(x, weight) is not torch.contiguous_format
    ),
}


class Call(NamedTuple):
    """The arguments of a forward; z is None for an operator that adds none."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    z: Tensor | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int

    @property
    def places(self) -> tuple[list[int], list[int], list[int]]:
        return self.stride, self.padding, self.dilation

    @property
    def shape(self) -> list[int]:
        return geometry.output_shape(self.x, self.weight, *self.places)

    @property
    def form(self) -> torch.memory_format:
        return geometry.memory_format(self.x, self.weight)

    def convolved(self) -> Tensor:
        """Return torch's convolution with the bias."""
        still = [0] * len(self.stride)
        return torch.convolution(
            self.x, self.weight, self.bias, *self.places, False, still, self.groups
        )


class Backward(NamedTuple):
    """The arguments of a backward; y is None for an operator that does not save its result."""

    dy: Tensor
    y: Tensor | None
    x: Tensor
    weight: Tensor
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    groups: int
    needs: tuple[bool, ...]

    @property
    def call(self) -> Call:
        """Return the forward, without what its gradients do not depend on."""
        return Call(self.x, self.weight, None, None, *self[4:8])

    def convolved(self, dy: Tensor) -> list[Tensor | None]:
        """Return torch's gradients of x, weight and bias, for the gradient of what is before what
        follows the convolution.
        """
        call = self.call
        return torch.ops.aten.convolution_backward.default(  # type: ignore[no-any-return]
            dy, self.x, self.weight, self.weight.shape[:1], *call.places, False,
            [0] * len(self.stride), self.groups, self.needs[:3],
        )  # fmt: skip


class Known:
    """Kinds of calls that were checked in full, which takes longer than to know them again."""

    def __init__(self) -> None:
        self._keys: set[Any] = set()

    def look(self, tensors: Iterable[Any], places: Iterable[list[int]], *rest: Any) -> Any:
        """Return True for a kind of call that was checked, else what to `add` once it was: all that
        the check depends on; None where that has no key, False where a tensor has a class of its
        own, so that its call goes through the operators, which check it.
        """
        key: list[Any] = []
        try:
            for t in tensors:
                if type(t) is Tensor or type(t) is Parameter:
                    key += (t.shape, t.dtype, t.device, t.layout)
                elif t is None:
                    key.append(None)
                else:
                    return False
            found = (*key, *map(tuple, places), *rest, *map(type, rest))  # 1.0 == 1
            return found in self._keys or found
        except (RuntimeError, TypeError):  # nested tensors have no shape, symbolic numbers no hash
            return None

    def add(self, key: Any) -> None:
        """Take a kind of call for checked."""
        if key:
            if len(self._keys) >= _MOST_KNOWN:
                self._keys.clear()
            self._keys.add(key)


@dataclass(frozen=True)
class Convolution:
    """An operator of x, weight and bias: their convolution and what follows it.

    optional  whether the bias may be None
    adds      whether z, of the result's shape, is added
    relu      whether what is negative then becomes 0; NaN stays

    Saved for backward: x, weight, and with `relu` the result.
    """

    name: str
    optional: bool = False
    adds: bool = False
    relu: bool = False
    _known: Known = field(default_factory=Known, compare=False, repr=False)

    def contract(self) -> contract.Contract:
        z, count = ", Tensor z" if self.adds else "", 4 if self.adds else 3
        numbers = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups"
        needs = "".join(f", bool need_d{name}" for name in ("x", "weight", "bias", "z")[:count])
        saved = "Tensor y, " if self.relu else ""
        return contract.Contract(
            name=self.name,
            args=f"Tensor x, Tensor weight, Tensor{'?' * self.optional} bias{z}, {numbers}",
            bwd_args=f"Tensor dy, {saved}Tensor x, Tensor weight, {numbers}{needs}",
            bwd_returns=f"({', '.join(['Tensor'] * count)})",
            fake=self._fake,
            fake_bwd=self._fake_bwd,
            decomposed=self.decomposed,
            function=self._function,
            vmap=self._vmap,
            facts=FACTS,
        )

    def run(self, selector: Selector, public: Function, impl: str, *args: Any) -> Any:
        """Run the public function; args: the tensors, stride, padding, dilation, groups."""
        *tensors, stride, padding, dilation, groups = args
        weight = tensors[1]
        if not isinstance(weight, Tensor):
            if operator.has_proxy(*tensors):  # torch.fx's
                return handle_torch_function(public, tuple(tensors), *args, impl=impl)
            raise TypeError(
                f"{self.name}: weight is a {type(weight).__name__}, expected a torch.Tensor"
            )
        places = geometry.numbers(
            self.name, weight, stride=stride, padding=padding, dilation=dilation
        )
        given = (*operator.lowered(*tensors), *places, groups)
        if self.adds and isinstance(given[3], Tensor) and given[3] is not tensors[3]:
            # Autocast leaves z and the sum in their own type.
            call = self.validate(*given)
            return self._finished(call._replace(z=tensors[3]))
        if not is_compiling():
            given = self._admitted(*given)
        return operator.call(selector, self.validate, public, impl, *given)

    def call(self, *args: Any) -> Call:
        """Return the arguments of a forward by name."""
        return Call._make(args if self.adds else (*args[:3], None, *args[3:]))

    def bwd_call(self, *args: Any) -> Backward:
        """Return the arguments of a backward by name."""
        dy, *rest = args
        y = rest.pop(0) if self.relu else None
        return Backward._make((dy, y, *rest[:6], tuple(rest[6:])))

    def validate(self, *args: Any) -> Call:
        """Refuse what no implementation takes, naming the argument; return the rest by name."""
        call = self.call(*args)
        if call.bias is None and not self.optional:
            raise TypeError(f"{self.name}: bias is None, expected a torch.Tensor")
        geometry.require(self.name, call.x, call.weight, call.bias, *call.places, call.groups)
        if self.adds:
            z: Any = call.z
            arguments.require_like(self.name, "z", z, call.x)
            geometry.require_result(self.name, "z", z, call.x, call.shape)
        return call

    def require(self, *args: Any) -> None:
        """Refuse what `validate` does, at once for what is as a call before was."""
        key = self._look(args)
        if key is not True:
            self.validate(*args)
            self._known.add(key)

    def _admitted(self, *args: Any) -> tuple[Any, ...]:
        """Return args of which kernels in eager code can be called: these check nothing."""
        key = self._look(args)
        if key is True or key is False:
            return args
        given = operator.admitted(self.validate, *args)
        if all(map(is_, given, args)):  # else autocast gave them one dtype
            self._known.add(key)
        return given

    def _look(self, args: tuple[Any, ...]) -> Any:
        return self._known.look(args[:-4], args[-4:-1], args[-1])

    def validate_bwd(self, *args: Any) -> Backward:
        """Refuse what no backward takes; return the rest by name."""
        given = self.bwd_call(*args)
        arguments.require_tensor(self.name, given.x)
        call = given.call
        geometry.require(self.name, call.x, call.weight, None, *call.places, call.groups)
        geometry.require_result(self.name, "dy", given.dy, call.x, call.shape)
        if self.relu:
            y: Any = given.y
            geometry.require_result(self.name, "y", y, call.x, call.shape)
        return given

    def decomposed(self, *args: Any) -> Tensor:
        """Return the operator in torch operations that autograd, vmap and jvp can take apart."""
        return self._finished(self.validate(*args))

    def _finished(self, call: Call) -> Tensor:
        y = call.convolved()
        if call.z is not None:
            y = y + call.z
        return torch.relu(y) if self.relu else y

    def gradients(self, *args: Any) -> tuple[Tensor | None, ...]:
        """Return the backward in torch operations that can themselves be differentiated."""
        given = self.bwd_call(*args)
        dy = given.dy
        if given.y is not None:
            dy = torch.ops.aten.threshold_backward.default(dy, given.y, 0)
        found = given.convolved(dy) if any(given.needs[:3]) else [None] * 3
        return (*found, dy) if self.adds else tuple(found)

    def _fake(self, *args: Any) -> Tensor:
        call = self.validate(*args)
        return geometry.empty(call.x, call.shape, call.form)

    def _fake_bwd(self, *args: Any) -> tuple[Tensor, ...]:
        given = self.validate_bwd(*args)
        call = given.call
        shapes = (call.x.shape, call.weight.shape, call.weight.shape[:1], call.shape)
        return tuple(
            geometry.empty(call.x, shape, call.form if len(shape) > 1 else torch.contiguous_format)
            if need
            else call.x.new_empty((0,))
            for need, shape in zip(given.needs, shapes, strict=False)
        )

    def _function(self, fwd: Function, bwd: Function) -> type[torch.autograd.Function]:
        count, saves, gradients = 4 if self.adds else 3, self.relu, self.gradients

        class Convolved(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Tensor:
                y: Tensor = fwd(*args)
                ctx.save_for_backward(*((y,) if saves else ()), *args[:2])
                ctx.numbers = args[count:]
                return y

            @staticmethod
            def backward(ctx: Any, dy: Tensor) -> Any:
                saved, needs = ctx.saved_tensors, ctx.needs_input_grad[:count]
                # y is an output of this node: a graph goes on through it.
                way = gradients if contract.wants_graph((dy, *saved)) else bwd
                grads = way(dy, *saved, *ctx.numbers, *needs)
                found = (g if need else None for g, need in zip(grads, needs, strict=True))
                return (*found, *(None for _ in ctx.numbers))

        return Convolved

    def _vmap(self, op: Function) -> Function:
        count = 4 if self.adds else 3

        def rule(info: Any, in_dims: Any, *args: Any) -> Any:
            tensors, rest, dims = args[:count], args[count:], in_dims[:count]
            if info.batch_size:
                each = zip(tensors, dims, strict=True)
                self.validate(*(t if t is None else unbatched(t, d) for t, d in each), *rest)
            own = dims[1] is not None or dims[2] is not None  # each its weight or its bias

            def batched(i: int) -> Any:
                t, of_all = tensors[i], i in (1, 2) and not own
                if t is None or of_all:
                    return t
                t = move_batch_dim_to_front(t, dims[i], info.batch_size)
                # One batch of all or, of weights of its own, groups of channels for each.
                return t.transpose(0, 1).flatten(1, 2) if own and i in (0, 3) else t.flatten(0, 1)

            size, first = info.batch_size, 1 if own else 0
            groups = rest[-1] * size if own else rest[-1]
            y: Tensor = op(*map(batched, range(count)), *rest[:-1], groups)
            return y.unflatten(first, (size, y.shape[first] // max(size, 1))), first

        return rule
