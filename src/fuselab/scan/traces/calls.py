"""An event of a trace as a call of one of our operators, with its inputs by their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from fuselab.scan.traces.trace import Array, Event, dense
from fuselab.worker.operators.recorded import Recorded
from fuseline import table
from fuseline.core.specs import spec_fields
from fuseline.core.specs.spec import OpSpec

_OURS = re.compile(r"fuseline::_?(\w+?)(_fwd|_bwd)?(?:__(\w+))?$")
SHORT = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}

Given = Mapping[str, Any]


def _rows(x: Array, normalized_shape: Sequence[int]) -> bool:
    return len(normalized_shape) == 1 and x.shape[-1:] == tuple(normalized_shape)


def _norm(
    op: str, x: Array, normalized_shape: Any, weight: Any, *rest: Any
) -> tuple[str, Given] | None:
    if not _rows(x, normalized_shape):
        return None
    named = {"x": x, "weight": weight}
    named |= {"bias": rest[0]} if op == "layer_norm" else {}
    eps = rest[-1]
    return op, named | ({} if eps is None else {"eps": eps})


def _layer_norm(*args: Any) -> tuple[str, Given] | None:
    return _norm("layer_norm", *args[:5])


def _rms_norm(*args: Any) -> tuple[str, Given] | None:
    return _norm("rms_norm", *args[:4])


def _softmax(op: str) -> Callable[..., tuple[str, Given] | None]:
    def call(x: Array, dim: Any = None, *rest: Any) -> tuple[str, Given] | None:
        if dim is None:
            return None
        along = dim if dim < 0 else dim - len(x.shape)
        return op, {"x": x} | ({} if along == -1 else {"dim": along})

    return call


def _cross_entropy(
    logits: Array, target: Array, weight: Any = None, reduction: Any = 1, *rest: Any
) -> tuple[str, Given] | None:
    ignored, smoothing = (*rest, None, None)[:2]
    if len(logits.shape) != len(target.shape) + 1 or len(logits.shape) > 2:
        return None  # classes in another dim than the last, or probabilities
    how: dict[str, Any] = {"reduction": ("none", "mean", "sum")[reduction or 0]}
    how |= {} if ignored is None else {"ignore_index": ignored}
    how |= {} if not smoothing else {"label_smoothing": float(smoothing)}
    return "cross_entropy", {"logits": logits, "target": target, "weight": weight, **how}


# What ATen's operators are among ours.
ATEN: Mapping[str, Callable[..., tuple[str, Given] | None]] = {
    "aten::layer_norm": _layer_norm,
    "aten::native_layer_norm": _layer_norm,
    "aten::rms_norm": _rms_norm,
    "aten::_fused_rms_norm": _rms_norm,
    "aten::softmax": _softmax("softmax"),
    "aten::_softmax": _softmax("softmax"),
    "aten::log_softmax": _softmax("log_softmax"),
    "aten::_log_softmax": _softmax("log_softmax"),
    "aten::cross_entropy_loss": _cross_entropy,
}


def implementation(event: Event, device: str) -> str:
    """Return the name of what computed one of our operators: in its own name, or the device's."""
    found = _OURS.fullmatch(event.name)
    return (found[3] if found else None) or device


def call_of(event: Event) -> Recorded | str:
    """Return the call of an event in its forward direction, or why it is none of our cases."""
    try:
        if event.name in ATEN:
            found = ATEN[event.name](*event.arguments)
            op, given = found or ("", {})
        else:
            op, given = _named(event)
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        return f"{event.name}: its arguments are not those that were expected: {error}"
    if op not in table.load():
        return f"{event.name}: not a case of our operators"
    return recorded(op, given)


def recorded(op: str, given: Given) -> Recorded | str:
    """Return a call of an operator with these inputs, the others as in its own cases."""
    spec = table.load()[op]
    template = _template(spec)
    inputs: dict[str, Any] = {}
    for name, usual in template.items():
        value = given.get(name)
        if isinstance(value, Array):
            inputs[name] = {
                "shape": list(value.shape),
                "strides": list(value.strides),
                "dtype": value.dtype,
            }
        elif name in given:
            inputs[name] = value
        elif isinstance(usual, Tensor):
            return f"{op}: {name}: not known from the trace"
        else:
            inputs[name] = usual
    takes = spec_fields.parameters(spec.reference) or ()
    inputs |= {
        name: value
        for name, value in given.items()
        if name in takes and name not in inputs and type(value) in (int, float) and value
    }
    first = next(v for v in inputs.values() if isinstance(v, dict))
    if getattr(torch, first["dtype"]) not in spec.dtypes:
        return f"{op}: {first['dtype']}: not among its dtypes"
    if not prod(first["shape"]):
        return f"{op}: an empty tensor"
    return Recorded(op, _name(inputs), first["dtype"], inputs)


def merged(calls: Sequence[Recorded]) -> list[Recorded]:
    """Return each call once with its count, under a name of its own among those of its operator."""
    found: dict[Any, Recorded] = {}
    for call in calls:
        key = call.op, repr(sorted(call.inputs.items()))
        had = found.get(key)
        count = call.count + (had.count if had else 0)
        directions = dict.fromkeys((*(had.directions if had else ()), *call.directions))
        found[key] = replace(call, count=count, directions=tuple(directions))
    names: dict[tuple[str, str], int] = {}
    result = []
    for call in found.values():
        place = call.op, call.name
        names[place] = names.get(place, 0) + 1
        again = "" if names[place] == 1 else f".{names[place]}"
        result.append(replace(call, name=call.name + again))
    return result


def _named(event: Event) -> tuple[str, Given]:
    """Return the operator of one of our events and its arguments by the names of its schema."""
    matched = _OURS.fullmatch(event.name)
    if matched is None:
        return "", {}
    op, packet = matched[1], getattr(torch.ops.fuseline, event.name.partition("::")[2])
    pairs = zip(packet.default._schema.arguments, event.arguments, strict=False)
    # A trace has no texts.
    return op, {a.name: value for a, value in pairs if str(a.type) != "str"}


@cache
def _templates(op: str) -> Given:
    spec = table.load()[op]
    # The shortest name has nothing unusual.
    checked = (c for c in spec.cases if "check" in c.suites)
    case = min(checked, key=lambda c: len(c.name), default=spec.cases[0])
    cpu = torch.device("cpu")
    return spec.make_inputs(case, spec.dtypes[0], cpu, torch.Generator(cpu))


def _template(spec: OpSpec) -> Given:
    """Return inputs of the operator's own, for their names and what a trace leaves out."""
    return _templates(spec.name)


def _name(inputs: Given) -> str:
    """Return what a call is called: the shape of its first tensor, dtype, and what is unusual."""
    tensors = {n: v for n, v in inputs.items() if isinstance(v, dict)}
    first = next(iter(tensors.values()))
    name = "x".join(map(str, first["shape"])) + f"-{SHORT.get(first['dtype'], first['dtype'])}"
    if tuple(first["strides"]) != dense(first["shape"]):
        name += f"-strides_{'_'.join(map(str, first['strides']))}"
    return name + (f".dim{inputs['dim']}" if "dim" in inputs else "")
