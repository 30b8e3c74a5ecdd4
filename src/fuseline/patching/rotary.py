"""Rotary embedding in a model's attention: its own forward, with our operator for one global."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from itertools import product
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from fuseline.core.registration.operator import PLAIN
from fuseline.ops import rope
from fuseline.ops.rope.op import SELECTOR
from fuseline.patching.probe import Differs, Unlike, neutral
from fuseline.patching.serving import Watched, own_class, replaced_forward

# The function of transformers' models, a global of the file of each, and what it takes.
FUNCTION = "apply_rotary_pos_emb"
NAMES = ("q", "k", "cos", "sin", "unsqueeze_dim")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Most that a result is off, in eps of the two terms' sizes: models round three times.
TERMS_EPS = 4

Cell = tuple[torch.dtype, torch.dtype]  # of the heads and of the tables
Halves = Callable[[Tensor], Tensor]
# Whether pairs are neighbours, and how a table of a number for each element gives those of pairs.
FORMS: dict[str, tuple[bool, Halves]] = {
    "halves": (False, lambda table: table.unflatten(-1, (2, -1))),
    "neighbours": (True, lambda table: table.unflatten(-1, (-1, 2)).mT),
}
_tracing = torch._C._get_tracing_state


class Globals(dict[str, Any]):
    """The globals of a function, as they are at each time, but for one name.

    CPython asks a subclass of dict by its methods; what it reads past them has underscores.
    """

    def __init__(self, own: dict[str, Any], name: str, value: Any) -> None:
        super().__init__({n: v for n, v in own.items() if n.startswith("__")})
        self.setdefault("__builtins__", builtins)
        self[name], self.own = value, own

    def __missing__(self, name: str) -> Any:
        return self.own[name]


class Rotary(Watched):
    """What an attention module carries whose heads our operator rotates.

    function  the global that its forward calls
    forward   that of its class
    device    the kind that the proof was made on
    form      of FORMS
    cells     in which the function is our operator
    """

    def __init__(
        self, impl: str, function: FunctionType, forward: FunctionType,
        proven: tuple[str, str, frozenset[Cell]],
    ) -> None:  # fmt: skip
        super().__init__(impl, ())
        self.function, self.own_forward, self.proven = function, forward, proven
        self.device, form, self.cells = proven
        self.interleaved, self.of_pairs = FORMS[form]
        space = Globals(forward.__globals__, FUNCTION, self.rotate)
        self._forward = FunctionType(
            forward.__code__, space, forward.__name__, forward.__defaults__, forward.__closure__
        )
        self._forward.__kwdefaults__ = forward.__kwdefaults__

    def __reduce__(self) -> Any:
        return Rotary, (self.impl, self.function, self.own_forward, self.proven)

    def still(self, other: Any) -> bool:
        """Whether another one serves the same."""
        return type(other) is Rotary and self.__reduce__() == other.__reduce__()

    def call(self, module: Any, made: Any, args: Any, kwargs: Any) -> Any:
        why = "torch.jit traces" if _tracing() is not None else self.changed(module, made)
        if self.own_forward.__globals__.get(FUNCTION) is not self.function:
            why = why or f"{FUNCTION} was replaced after patch"
        if why is not None:
            self.count(why)
            return why
        return self._forward(module, *args, **kwargs)

    def rotate(self, q: Any, k: Any, cos: Any, sin: Any, unsqueeze_dim: Any = 1) -> Any:
        """Return what `function` does; each call is counted."""
        why = self._refusal(q, k, cos, sin, unsqueeze_dim)
        self.count(why)
        if why is not None:
            return self.function(q, k, cos, sin, unsqueeze_dim)
        return rope(q, k, self.of_pairs(cos), self.of_pairs(sin), self.interleaved, self.impl)

    def _refusal(self, q: Any, k: Any, cos: Any, sin: Any, dim: Any) -> str | None:
        if any(type(t) not in PLAIN or t.is_nested for t in (q, k, cos, sin)):
            return "an argument of its rotation is a subclass of Tensor, or none"
        if (q.dim(), k.dim(), cos.dim(), dim) != (4, 4, 3, 1):
            return "heads or tables of other dimensions than were proven"
        if q.device.type != self.device:
            return f"q is on {q.device.type}, proven on {self.device}: patch again"
        if (q.dtype, cos.dtype) not in self.cells or (k.dtype, sin.dtype) != (q.dtype, cos.dtype):
            return f"not proven: q of {q.dtype}, tables of {cos.dtype}"
        batch, _, *row = q.shape
        fits = [k.shape[0], *k.shape[2:]] == [batch, *row] and cos.shape[0] in (1, batch)
        if not fits or [*cos.shape[1:]] != row or sin.shape != cos.shape:
            return "heads and tables of other shapes than were proven"
        return None


def calls_it(forward: Any) -> bool:
    """Whether a function, or what it wraps, calls the rotation by its name."""
    code = getattr(inspect.unwrap(forward), "__code__", None) if callable(forward) else None
    return isinstance(code, CodeType) and FUNCTION in code.co_names


class Rotaries:
    """Finds them in a model; functions that are alike are proven once."""

    def __init__(self, impl: str) -> None:
        self.impl = impl
        self._proofs: dict[Any, tuple[str, frozenset[Cell]] | str] = {}

    def serving(self, module: Module) -> Rotary | str | None:
        """Return what would serve a module, why it is left alone, or None if it rotates nothing."""
        forward: Any = own_class(module).forward
        if not calls_it(forward):
            return None
        if replaced_forward(module):
            return "its forward was replaced on the instance"
        if type(forward) is not FunctionType or FUNCTION not in forward.__code__.co_names:
            return "its forward is wrapped in a decorator"
        function = forward.__globals__.get(FUNCTION)
        if type(function) is not FunctionType or function.__closure__:
            return f"{FUNCTION} is a {type(function).__name__}, on whose state results may depend"
        where = [p.device for p in module.parameters() if p.device.type != "meta"]
        if not where:
            return "its weights are on meta"
        key = function, where[0]
        if key not in self._proofs:
            self._proofs[key] = self._proof(*key)
        proof = self._proofs[key]
        if isinstance(proof, str):
            return proof
        return Rotary(self.impl, function, forward, (where[0].type, *proof))

    def _proof(
        self, function: FunctionType, device: torch.device
    ) -> tuple[str, frozenset[Cell]] | str:
        if self.impl != "auto" and self.impl not in SELECTOR.names:
            return f"rope has no implementation {self.impl!r}"
        impls = SELECTOR.names[:-1] if self.impl == "auto" else (self.impl,)
        reasons = [SELECTOR.unavailable(name, device.type) for name in impls]
        if None not in reasons:
            return f"rope: {reasons[0]}"
        taken = inspect.signature(function).parameters
        if tuple(taken) != NAMES or taken[NAMES[-1]].default != 1:
            return f"{FUNCTION} takes {', '.join(taken)}"
        try:
            return prove(function, self.impl, device)
        except Unlike as error:
            return f"{FUNCTION}: {error}"


def prove(function: Any, impl: str, device: torch.device) -> tuple[str, frozenset[Cell]]:
    """Return the form in which a function is our operator, and the cells in which it is.

    Raises Unlike where it is none.
    """
    errors: dict[str, Unlike] = {}  # in fp32
    for form in FORMS:
        found = []
        with neutral(device):
            for cell in product(DTYPES, DTYPES):
                try:
                    _compare(function, form, impl, cell, device)
                    found.append(cell)
                except Unlike as error:
                    errors.setdefault(form, error)
        if found:
            return form, frozenset(found)
    raise min(errors.values(), key=lambda e: e.gap if isinstance(e, Differs) else -1.0)


def _compare(function: Any, form: str, impl: str, cell: Cell, device: torch.device) -> None:
    """Raise Unlike where a function, or we, give other results or gradients than fp64 does."""
    dtype, table = cell
    generator = torch.Generator()
    generator.seed()

    def random(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device, dtype)

    heads = [random(dtype, 2, 7, n, 12).transpose(1, 2) for n in (3, 2)]
    heads[0][0, 0, 1, 2] = torch.nan
    tables = [random(table, 2, 7, 12) for _ in "cs"]
    dys = [random(dtype, *t.shape) for t in heads]
    interleaved, of_pairs = FORMS[form]

    def ours(impl: str) -> Callable[..., Any]:
        return lambda q, k, c, s: rope(q, k, of_pairs(c), of_pairs(s), interleaved, impl)

    sizes = _sizes(heads, dys, [of_pairs(t) for t in tables], interleaved)
    wide = [[t.double() for t in many] for many in (heads, tables, dys)]
    exact = _results(ours("eager"), *wide)
    for call in (function, ours(impl)):
        results = _results(call, heads, tables, dys)
        if any(y.stride() != x.stride() for x, y in zip(heads, results, strict=False)):
            raise Unlike("its results lie in memory as its arguments do not")
        for got, like, want, size in zip(results, (*heads, *heads), exact, sizes, strict=True):
            if (got.dtype, got.shape) != (dtype, like.shape):
                raise Unlike(f"gives {got.dtype} of shape {tuple(got.shape)} for {dtype}")
            off = (got.double() - want).abs() / (TERMS_EPS * torch.finfo(dtype).eps * size)
            off = off.masked_fill(got.isnan() & want.isnan(), 0.0)
            if (gap := float(off.nan_to_num(float("inf")).max())) > 1:
                raise Differs(gap)


def _results(call: Any, heads: Any, tables: Any, dys: Any) -> list[Tensor]:
    """Return two results and their gradients."""
    leaves = [t.detach().requires_grad_() for t in heads]
    with torch.enable_grad():
        try:
            made = call(*leaves, *tables)
            return [t.detach() for t in (*made, *torch.autograd.grad(made, leaves, dys))]
        except Exception as error:  # whatever it does
            line = (str(error).strip().splitlines() or [""])[0]
            raise Unlike(f"it raises {type(error).__name__} on a probe: {line}") from error


def _sizes(heads: Any, dys: Any, tables: Any, interleaved: bool) -> list[Tensor]:
    """Return the sums of the sizes of the terms of each result and gradient."""
    cos, sin = (t.double().abs() for t in tables)
    signs = torch.tensor([[-1.0], [1.0]], device=cos.device, dtype=cos.dtype)
    found: list[Tensor] = []
    for many, s in ((heads, sin), (dys, sin.flip(-2))):
        q, k = (t.nan_to_num().double().abs() for t in many)
        found += rope(q, k, cos, s * signs, interleaved, "eager")
    return found
