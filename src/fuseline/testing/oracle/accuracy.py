"""How far results are from the fp64 oracle, and whether that is too far."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuseline.core.specs.spec import Budget, Direction, Inputs, OpSpec
from fuseline.testing.oracle import longdouble
from fuseline.testing.oracle.chunks import chunks
from fuseline.testing.oracle.ulps import ulp

LONGDOUBLE_ELEMENTS = 1 << 18

# A result this wrong, relative to its size, is no yardstick for others.
HOPELESS = 0.25


@dataclass(frozen=True)
class ErrorFigures:
    """Error against the fp64 reference.

    max_abs      largest absolute error
    rms          root mean square of the absolute errors
    max_ulp      largest error in units of the last place of the result's dtype
    scaled       max_abs / (eps * max|ref|)
    eager_ratio  max_abs over eager's; None if eager has no error to compare with

    All but `rms` are infinite if the result is missing, has another shape, or is NaN or Inf where
    the reference is not (or the reverse).
    """

    max_abs: float
    rms: float
    max_ulp: float
    scaled: float
    eager_ratio: float | None = None


_NO_RESULT = "the result: got a {}, expected a tensor or a tuple of tensors"
NOTHING_RIGHT = ErrorFigures(math.inf, math.inf, math.inf, math.inf)


def as_tuple(outputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs of a call as a tuple, whether it returned one tensor or several."""
    if isinstance(outputs, Tensor):
        return (outputs,)
    # By the iterator of the base: a generator, or a class with its own, computes when it is read.
    if isinstance(outputs, tuple):
        return tuple(tuple.__iter__(outputs))
    if isinstance(outputs, list):
        return tuple(list.__iter__(outputs))
    raise TypeError(_NO_RESULT.format(type(outputs).__name__))


def replaced_methods(result: Tensor) -> str:
    """Return the names of Tensor that this one has of its own, or "": they may compute on read."""
    return ", ".join(name for name in vars(result) if hasattr(Tensor, name))


def results(outputs: Tensor | Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the outputs of a call as a tuple; TypeError if one of them is no tensor."""
    for y in (found := as_tuple(outputs)):
        if not isinstance(y, Tensor):
            raise TypeError(_NO_RESULT.format(type(y).__name__))
        if own := replaced_methods(y):
            raise TypeError(f"the result: got a tensor with its own {own}, expected a plain tensor")
    return found


def gradient_names(spec: OpSpec, inputs: Inputs) -> tuple[str, ...]:
    """Return the `differentiable` inputs that are present and floating."""
    return tuple(n for n in spec.differentiable if _is_floating(inputs.get(n)))


def run(
    fn: Callable[..., Any],
    spec: OpSpec,
    inputs: Inputs,
    direction: Direction,
    dys: tuple[Tensor, ...] | None = None,
) -> dict[str, Tensor]:
    """Call fn once and return its outputs or its gradients by name.

    fn         called as fn(**inputs)
    spec       whose `differentiable` inputs get gradients
    inputs     keyword inputs
    direction  "fwd": return {"out0": y, ...}, without grad; "bwd": {input name: gradient}
    dys        one gradient for each output; required for "bwd"

    The leaves are the inputs detached, so their memory layout is kept. A gradient that autograd
    does not deliver is absent from the result.
    """
    if direction == "fwd":
        with torch.no_grad():
            return {f"out{i}": y for i, y in enumerate(as_tuple(fn(**inputs)))}
    if dys is None:
        raise ValueError("dys: expected one gradient per output for direction 'bwd', got None")
    names = gradient_names(spec, inputs)
    return {n: g for n, g in _gradients(fn, inputs, names, dys).items() if g is not None}


def make_dys(outputs: Sequence[Tensor], generator: torch.Generator) -> tuple[Tensor, ...]:
    """Return one gradient for each of `outputs`, drawn from N(0, 1) by `generator`.

    Each has its output's dtype, device, shape and, where these leave no gaps, strides.
    """
    return tuple(_normal_like(y, generator) for y in outputs)


def draw_dys(
    spec: OpSpec, inputs: Inputs, outputs: Sequence[Tensor], generator: torch.Generator
) -> tuple[Tensor, ...]:
    """Return as `make_dys`, but 0 where the spec says that the gradient jumps."""
    dys = make_dys(outputs, generator)
    return dys if spec.settled is None else spec.settled(inputs, dys)


def errors(
    spec: OpSpec,
    inputs: Inputs,
    direction: Direction,
    results: Mapping[str, Tensor],
    dys: tuple[Tensor, ...] | None = None,
) -> dict[str, ErrorFigures]:
    """Return name -> error against `spec.reference` in fp64.

    spec       whose reference, longdouble and row_inputs are used
    inputs     the keyword inputs of the call that is judged
    direction  "fwd" (outputs, "out0", ...) or "bwd" (gradients, by the inputs' names)
    results    what the call gave, as `run` returns it
    dys        the gradients of the outputs; required for "bwd"

    Works in row chunks of about 2^24 elements, 2^19 on a CPU. fp64 results for up to 2^18 input
    elements are held against `spec.longdouble` where the spec has one; of more elements the rows
    in which they and the reference differ by more than two ULP, up to 2^22 elements a chunk, and
    all in which they differ by more than the budget. Errors that are to be compared must come from
    one call: a result that agrees with the reference does not show where the reference errs.
    """
    return errors_of_each(spec, inputs, direction, (results,), dys)[0]


def errors_of_each(
    spec: OpSpec,
    inputs: Inputs,
    direction: Direction,
    results: tuple[Mapping[str, Tensor], ...],
    dys: tuple[Tensor, ...] | None = None,
) -> list[dict[str, ErrorFigures]]:
    """Return as `errors`, for the results of several calls; the oracle works once for all."""
    if direction == "bwd" and dys is None:
        raise ValueError("dys: expected the output gradients of the backward, got None")
    if _wants_longdouble(spec, inputs, results):
        return _errors_longdouble(spec, inputs, direction, results, dys)
    tallies: list[dict[str, _Tally]] = [{} for _ in results]
    summed: dict[str, Tensor] = {}
    for part in chunks(spec, inputs, results, dys):
        refs = oracle(spec, part.inputs, direction, part.dys)
        if direction == "fwd" and spec.longdouble:
            longdouble.settle(spec, part.inputs, part.results, refs)
        for name, ref in refs.items():
            if part.whole or direction == "fwd" or name in spec.row_inputs:
                added = _added(spec, part.inputs, name)
                for tally, found in zip(tallies, part.results, strict=True):
                    tally.setdefault(name, _Tally()).add(found.get(name), ref, added=added)
            else:
                summed[name] = summed[name] + ref if name in summed else ref
    for name, ref in summed.items():
        for tally, found in zip(tallies, results, strict=True):
            tally.setdefault(name, _Tally()).add(found.get(name), ref)
    return [{name: t.figures() for name, t in tally.items()} for tally in tallies]


def in_ulp(budget: Budget, direction: Direction) -> bool:
    """Return whether errors are judged in ULP of each element, else in eps * max|result|."""
    return direction == "fwd" and not budget.gradients


def over_budget(
    budget: Budget,
    dtype: torch.dtype,
    direction: Direction,
    mine: ErrorFigures,
    eager: ErrorFigures | None,
) -> str | None:
    """Return why an error exceeds the budget, with figures, or None.

    budget     the limits
    dtype      of the result
    direction  "fwd": judged in ULP; "bwd": in eps * max|gradient|
    mine       the error that is judged
    eager      eager's error, or None; used only while eager has some right digits itself
    """
    direction = "fwd" if in_ulp(budget, direction) else "bwd"
    unit = "ULP" if direction == "fwd" else "eps * max|result|"
    value = mine.max_ulp if direction == "fwd" else mine.scaled
    yardstick = None if eager is None else eager.max_ulp if direction == "fwd" else eager.scaled
    if yardstick is not None and not yardstick <= HOPELESS / torch.finfo(dtype).eps:
        yardstick = None
    limit = _limit(budget, dtype, direction, yardstick)
    if value <= limit:
        return None
    if not math.isfinite(value):
        return "NaN or Inf where the oracle has none (or the reverse), or a wrong shape"
    beside = "" if yardstick is None else f"; eager's own error is {yardstick:.3g}"
    return f"error {value:.4g} {unit} is above the limit of {limit:.4g}{beside}"


def _limit(
    budget: Budget, dtype: torch.dtype, direction: Direction, yardstick: float | None
) -> float:
    eager = yardstick or 0.0
    if dtype == torch.float64 and direction == "fwd":
        return max(budget.fp64_fwd_ulp, budget.fp64_ratio * eager)
    if dtype == torch.float8_e4m3fn:
        return budget.e4m3_fwd_ulp
    # Where terms cancel (the gradient of a row of length 1), no formula is exact; eager shows it.
    times = budget.fp32_ratio * eager
    if dtype == torch.float64:
        return max(budget.fp64_grad_eps, times)
    if dtype == torch.float32:
        return max(budget.fp32_floor, times)
    limit = eager + budget.half_extra
    return limit if direction == "fwd" else max(limit, times)


class _Tally:
    """Error of one result, gathered over chunks."""

    def __init__(self) -> None:
        self._max_abs = self._max_ulp = self._max_ref = self._squares = 0.0
        self._count = 0
        self._wrong = False
        self._dtype = torch.float64

    def add(
        self,
        out: Tensor | None,
        ref: Tensor,
        delta: Tensor | None = None,
        added: Tensor | None = None,
    ) -> None:
        """Take in `out` against `ref` (fp64); `delta` = out - ref where fp64 is too coarse.

        `added` is the term whose digits an error counts in where it is larger than `ref`.
        """
        if out is None or out.shape != ref.shape:
            self._wrong = True
            return
        if ref.numel() == 0:
            return
        out = out.detach()
        if not out.is_floating_point():
            self._wrong = self._wrong or not torch.equal(out, ref.to(out.dtype))
            return
        self._dtype = out.dtype
        wide = out.to(torch.float64)  # float8 can do little more than that
        gap = (wide - ref).abs()
        largest = gap.max().item()
        if math.isfinite(largest):  # in most calls
            if delta is not None:
                gap = delta.abs()
                largest = gap.max().item()
        else:
            rounded = ref.to(out.dtype).to(torch.float64)
            same = (wide == rounded) | (wide.isnan() & ref.isnan())
            comparable = wide.isfinite() & ref.isfinite()
            if not bool((same | comparable).all()):
                self._wrong = True
                return
            # What is not finite agrees by now; it must not turn the sums into NaN.
            gap = (gap if delta is None else delta.abs()).where(comparable, 0.0)
            largest = gap.max().item()
            ref = ref.where(ref.isfinite(), 0.0)
        self._max_abs = max(self._max_abs, largest)
        size = ref if added is None else torch.fmax(ref.abs(), added.abs())  # NaN is no size
        self._max_ulp = max(self._max_ulp, (gap / ulp(size, self._dtype)).max().item())
        self._max_ref = max(self._max_ref, ref.abs().max().item())
        self._squares += gap.square().sum().item()
        self._count += ref.numel()

    def figures(self) -> ErrorFigures:
        if self._wrong:
            return NOTHING_RIGHT
        info = torch.finfo(self._dtype)
        unit = info.eps * max(self._max_ref, info.tiny)
        rms = math.sqrt(self._squares / self._count) if self._count else 0.0
        return ErrorFigures(self._max_abs, rms, self._max_ulp, self._max_abs / unit)


def _added(spec: OpSpec, inputs: Inputs, name: str) -> Tensor | None:
    """Return the spec's `added` to the first output, in fp64."""
    added = spec.added(**inputs) if spec.added and name == "out0" else None
    return added if added is None else added.to(torch.float64)


def oracle(
    spec: OpSpec, inputs: Inputs, direction: Direction, dys: tuple[Tensor, ...] | None
) -> dict[str, Tensor]:
    """Return the reference's outputs ("fwd") or gradients ("bwd") in fp64, in one piece."""
    exact = {n: v.to(torch.float64) if _is_floating(v) else v for n, v in inputs.items()}
    if direction == "fwd":
        with torch.no_grad():
            return {f"out{i}": y for i, y in enumerate(as_tuple(spec.reference(**exact)))}
    names = gradient_names(spec, inputs)
    found = _gradients(spec.reference, exact, names, tuple(_exact(dy) for dy in dys or ()))
    return {n: torch.zeros_like(exact[n]) if g is None else g for n, g in found.items()}


def _gradients(
    fn: Callable[..., Any], inputs: Inputs, names: tuple[str, ...], dys: tuple[Tensor, ...]
) -> dict[str, Tensor | None]:
    leaves = {n: inputs[n].detach().requires_grad_() for n in names}
    with torch.enable_grad():
        outputs = as_tuple(fn(**{**inputs, **leaves}))
    live = [(y, dy) for y, dy in zip(outputs, dys, strict=True) if y.requires_grad]
    if not live or not leaves:
        return dict.fromkeys(names)
    ys, seeds = zip(*live, strict=True)
    grads = torch.autograd.grad(ys, tuple(leaves.values()), seeds, allow_unused=True)
    return dict(zip(names, grads, strict=True))


def _wants_longdouble(
    spec: OpSpec, inputs: Inputs, results: tuple[Mapping[str, Tensor], ...]
) -> bool:
    tensors = [v for v in inputs.values() if isinstance(v, Tensor)]
    return (
        spec.longdouble is not None
        and any(t.dtype == torch.float64 for found in results for t in found.values())
        and sum(t.numel() for t in tensors) <= LONGDOUBLE_ELEMENTS
    )


def _errors_longdouble(
    spec: OpSpec,
    inputs: Inputs,
    direction: Direction,
    results: tuple[Mapping[str, Tensor], ...],
    dys: tuple[Tensor, ...] | None,
) -> list[dict[str, ErrorFigures]]:
    refs = longdouble.evaluate(spec, inputs, direction, dys)
    if direction == "fwd":
        named = {f"out{i}": ref for i, ref in enumerate(refs)}
    else:
        given = (ref for ref in refs if ref is not None)
        named = dict(zip(gradient_names(spec, inputs), given, strict=True))
    figures: list[dict[str, ErrorFigures]] = [{} for _ in results]
    for name, ref in named.items():
        narrow, added = longdouble.narrow(ref), _added(spec, inputs, name)
        added = added if added is None else added.cpu()
        for mine, found in zip(figures, results, strict=True):
            tally, out = _Tally(), found.get(name)
            out = out if out is None else out.detach().cpu()
            same_shape = out is not None and tuple(out.shape) == ref.shape
            delta = longdouble.difference(out, ref) if out is not None and same_shape else None
            tally.add(out, narrow, delta, added)
            mine[name] = tally.figures()
    return figures


def _normal_like(output: Tensor, generator: torch.Generator) -> Tensor:
    if not output.is_floating_point():
        return torch.zeros_like(output)
    drawn = torch.randn(
        output.shape, generator=generator, device=generator.device, dtype=output.dtype
    )
    drawn = drawn.to(output.device)
    return drawn if output.is_contiguous() else torch.empty_like(output).copy_(drawn)


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()
