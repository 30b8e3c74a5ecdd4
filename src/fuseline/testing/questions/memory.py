"""Checks of what a call does to memory, and of what it may not remember."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fuseline.core.specs.spec import Direction, Inputs
from fuseline.testing.oracle.accuracy import gradient_names, make_dys
from fuseline.testing.poison import filled_memory
from fuseline.testing.questions import rows
from fuseline.testing.questions.layouts import relayouts
from fuseline.testing.report import Finding
from fuseline.testing.trial import (
    CONTIGUOUS,
    Results,
    Trial,
    floating,
    same_bits,
    storage_bytes,
    tensors,
)

Dys = tuple[Tensor, ...]


def unchanged(trial: Trial) -> Iterator[Finding]:
    """Check that inputs and incoming gradients keep every byte of their allocations and gaps."""
    inputs = trial.inputs()
    yield trial.finding("unchanged", _writes(trial, inputs))
    for name in trial.relayout_names(inputs):
        for layout, view in relayouts(inputs[name]):
            reason = _writes(trial, {**inputs, name: view})
            yield trial.finding("unchanged", reason, f"{name}: {layout}")


def deterministic(trial: Trial) -> Iterator[Finding]:
    """Check the same bits every time, with many rows, whatever the memory held before."""
    inputs = trial.inputs()
    crowded = rows.many(trial, inputs)
    for layout, given in ((CONTIGUOUS, inputs), ("many rows", crowded)):
        if given is not None:
            for direction, dys in _directions(trial, given):
                reason = _varies(trial, given, direction, dys)
                yield trial.finding("deterministic", reason, f"{layout}, {direction}")


def stale(trial: Trial) -> Iterator[Finding]:
    """Check results when everything that is allocated comes filled with NaN."""
    inputs = trial.inputs()
    for direction, dys in _directions(trial, inputs):
        with filled_memory():
            results = trial.call(inputs, direction, dys)
        reason = trial.why_wrong(results, inputs, direction, dys)
        yield trial.finding("stale", reason, f"{CONTIGUOUS}, {direction}")


def alias(trial: Trial) -> Iterator[Finding]:
    """Check that results live in memory of their own: not an input's, not an earlier result's."""
    first, second = trial.inputs(), trial.inputs("second")
    for direction, dys in _directions(trial, first):
        early = trial.call(first, direction, dys)
        kept = {n: t.clone() for n, t in early.items()}
        late = trial.call(second, direction, None if dys is None else trial.dys(second, "second"))
        reason = _shares(early, tensors(first)) or _shares(late, early)
        for name, value in kept.items():
            if not same_bits(early[name], value):
                reason = f"{name} of the first call changed during the second"
        yield trial.finding("alias", reason, f"{CONTIGUOUS}, {direction}")


def cached(trial: Trial) -> Iterator[Finding]:
    """Check that new contents behind the same pointer give new results."""
    inputs, other = trial.inputs(), trial.inputs("other")
    for name, tensor in floating(inputs).items():
        for direction, dys in _directions(trial, inputs):
            trial.call(inputs, direction, dys)
            # Through .data, so that not even the version counter moves.
            tensor.data.copy_(other[name])
            reason = trial.wrong(inputs, direction, dys)
            yield trial.finding("cached", reason, f"{name} rewritten, {direction}")
            tensor.data.copy_(trial.inputs()[name])


def saved(trial: Trial) -> Iterator[Finding]:
    """Check that a change between forward and backward is refused or makes no difference."""
    inputs = trial.inputs()
    names = gradient_names(trial.spec, inputs)
    for name in names:
        outputs, leaves, seen = _graph(trial, inputs, names)
        with torch.no_grad():
            seen[name].mul_(2.0)
        dys = make_dys(outputs, trial.generator("dys"))
        reason = _refused_or_right(trial, inputs, (outputs, leaves, dys), dys)
        yield trial.finding("saved", reason, f"{name} changed after the forward")
    if names:
        outputs, leaves, _ = _graph(trial, inputs, names)
        dys = make_dys(outputs, trial.generator("dys"))
        try:
            doubled = tuple(y.mul_(2.0) for y in outputs)
        except RuntimeError:
            return
        reason = _refused_or_right(
            trial, inputs, (doubled, leaves, dys), tuple(dy * 2 for dy in dys)
        )
        yield trial.finding("saved", reason, "output changed after the forward")


def stream(trial: Trial) -> Iterator[Finding]:
    """Check that work follows the current CUDA stream: there, the inputs arrive late."""
    if trial.device.type != "cuda":
        return
    inputs = trial.inputs()
    for direction, dys in _directions(trial, inputs):
        late = {**inputs, **{n: torch.full_like(t, torch.nan) for n, t in floating(inputs).items()}}
        trial.call(late, direction, dys)
        side = torch.cuda.Stream(trial.device)
        torch.cuda.synchronize(trial.device)
        with torch.cuda.device(trial.device), torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            for name, tensor in floating(inputs).items():
                late[name].copy_(tensor)
            results = trial.call(late, direction, dys)
        side.synchronize()
        reason = trial.why_wrong(results, inputs, direction, dys)
        yield trial.finding("stream", reason, f"side stream, {direction}")


def _directions(trial: Trial, inputs: Inputs) -> Iterator[tuple[Direction, Dys | None]]:
    yield "fwd", None
    if gradient_names(trial.spec, inputs):
        yield "bwd", trial.dys(inputs)


def _writes(trial: Trial, inputs: Inputs) -> str | None:
    before = {n: storage_bytes(t) for n, t in tensors(inputs).items()}
    for direction, dys in _directions(trial, inputs):
        given = tensors(inputs) | {f"dy{i}": dy for i, dy in enumerate(dys or ())}
        was = before | {f"dy{i}": storage_bytes(dy) for i, dy in enumerate(dys or ())}
        trial.call(inputs, direction, dys)
        for name, tensor in given.items():
            changed = int((storage_bytes(tensor) != was[name]).sum())
            if changed:
                return f"{name}: {changed} bytes changed during the {direction}, expected none"
            if tensor.requires_grad:
                return f"{name}: requires grad after the {direction}, it did not before"
    return None


def _varies(trial: Trial, inputs: Inputs, direction: Direction, dys: Dys | None) -> str | None:
    repeats = 5
    first = trial.call(inputs, direction, dys)
    for i in range(repeats):
        again = trial.call(inputs, direction, dys)
        for name, value in first.items():
            if name not in again or not same_bits(again[name], value):
                return f"{name}: call {i + 2} with the same inputs gave other bits than call 1"
    return None


def _shares(results: Results, others: dict[str, Tensor]) -> str | None:
    homes = {t.untyped_storage().data_ptr(): n for n, t in others.items() if t.numel()}
    for name, result in results.items():
        home = homes.get(result.untyped_storage().data_ptr()) if result.numel() else None
        if home is not None:
            return f"{name} lies in the memory of {home}, expected memory of its own"
    return None


def _graph(
    trial: Trial, inputs: Inputs, names: tuple[str, ...]
) -> tuple[Dys, tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the outputs, the leaves, and what the implementation saw (copies of the leaves)."""
    leaves = {n: inputs[n].detach().requires_grad_() for n in names}
    seen = {n: leaf.clone() for n, leaf in leaves.items()}
    results = trial.call_differentiable({**inputs, **seen})
    return tuple(results.values()), tuple(leaves.values()), seen


def _refused_or_right(
    trial: Trial, inputs: Inputs, graph: tuple[Dys, tuple[Tensor, ...], Dys], dys: Dys
) -> str | None:
    outputs, leaves, seeds = graph
    live = [(y, seed) for y, seed in zip(outputs, seeds, strict=True) if y.requires_grad]
    if not live:
        return None
    try:
        ys, seeds = zip(*live, strict=True)
        found = torch.autograd.grad(ys, leaves, seeds, allow_unused=True)
    except RuntimeError as error:
        return None if "modified" in str(error) else f"raised {error}"
    named = zip(gradient_names(trial.spec, inputs), found, strict=True)
    results = {n: g for n, g in named if g is not None}
    return trial.why_wrong(results, inputs, "bwd", dys)
