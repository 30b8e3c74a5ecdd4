"""What the fields of a spec may be: errors that name the field, what came, what was expected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

import torch


class OpSpecError(ValueError):
    """A field that cannot be meant so; the text names it, what came, and what was expected."""


def fault(
    owner: str, field: str, came: str, expected: str, known: Collection[str] = ()
) -> OpSpecError:
    """Return the error, with the known name that is most like what came."""
    near = get_close_matches(came.strip("'"), known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return OpSpecError(f"{owner}: {field}: got {came}, expected {expected}{hint}")


def text(owner: str, field: str, value: Any) -> str:
    """Return a name."""
    if not isinstance(value, str) or not value:
        raise fault(owner, field, repr(value), "a text")
    return value


def one_of(owner: str, field: str, value: Any, names: Collection[str]) -> None:
    """Raise for what is not one of the names."""
    if value not in names:
        raise fault(owner, field, repr(value), f"one of: {', '.join(names) or 'none'}", names)


def items(owner: str, field: str, value: Any, kind: type, what: str) -> tuple[Any, ...]:
    """Return a tuple of what must be of one kind; a list is taken for one."""
    if isinstance(value, kind):
        one = repr(value) if kind is str else what
        raise fault(owner, field, f"{one} alone", f"a tuple, with a comma: ({one},)")
    if not isinstance(value, (tuple, list)):
        raise fault(owner, field, _kind(value), f"a tuple of {what}s")
    for item in value:
        if not isinstance(item, kind):
            raise fault(owner, field, f"{_kind(item)} in it", f"{what}s only")
    return tuple(value)


def unique(owner: str, field: str, names: Iterable[str]) -> None:
    """Raise for a name that is there twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise fault(owner, field, f"two named {name!r}", "names that differ")
        seen.add(name)


def function(owner: str, field: str, value: Any, arguments: str = "") -> None:
    """Raise for what cannot be called with the arguments, given by position, as far as is known."""
    if not callable(value):
        raise fault(owner, field, _kind(value), f"a function ({arguments})" if arguments else "one")
    if not arguments:
        return
    takes = signature(value)
    try:
        if takes is not None:
            takes.bind(*arguments.split(", "))
    except TypeError as error:
        raise fault(owner, field, f"a function {takes}", f"({arguments}): {error}") from None


def signature(value: Callable[..., Any]) -> inspect.Signature | None:
    """Return the function's own signature, not that of what it wraps; None where it has none."""
    try:
        return inspect.signature(value, follow_wrapped=False)
    except (TypeError, ValueError):
        return None


def parameters(value: Callable[..., Any]) -> tuple[str, ...] | None:
    """Return the names that the function takes as keywords; None if it may take any."""
    takes = signature(value)
    if takes is None:
        return None
    kinds = [parameter.kind for parameter in takes.parameters.values()]
    return None if inspect.Parameter.VAR_KEYWORD in kinds else tuple(takes.parameters)


def inputs(owner: str, found: Any, reference: Callable[..., Any]) -> dict[str, Any]:
    """Return what make_inputs gave, if the reference takes these names."""
    if not isinstance(found, Mapping):
        raise fault(owner, "make_inputs", f"{_kind(found)} from it", "a dict of inputs by name")
    takes = parameters(reference)
    for name in found:
        if not isinstance(name, str):
            raise fault(owner, "make_inputs", f"the name {name!r} from it", "a text")
        if takes is not None and name not in takes:
            expected = f"a name that the reference takes: {', '.join(takes)}"
            raise fault(owner, "make_inputs", repr(name), expected, takes)
    return dict(found)


def tensor_names(
    owner: str,
    field: str,
    names: Iterable[str],
    found: Mapping[str, Any],
    reference: Callable[..., Any],
    floating: bool,
) -> None:
    """Raise for a name of no input, or of one that is no (floating) tensor.

    An input may be None or absent if the reference has such a parameter; a mask may be of bool in
    some cases.
    """
    optional = parameters(reference) or ()
    for name in names:
        value = found.get(name)
        if name not in found and name not in optional:
            raise fault(
                owner, field, repr(name), f"names of inputs: {', '.join(found)}", list(found)
            )
        if value is None:
            continue
        what = "a floating tensor" if floating else "a tensor"
        if not isinstance(value, torch.Tensor):
            raise fault(owner, field, f"{name!r}, {_kind(value)}", what)
        if floating and not (value.is_floating_point() or value.dtype == torch.bool):
            raise fault(owner, field, f"{name!r}, a tensor of {value.dtype}", what)


def _kind(value: Any) -> str:
    """Return a short text of what came."""
    if value is None or isinstance(value, (str, int, float, torch.dtype, type)):
        return repr(value)
    return f"a {type(value).__name__}"
