"""The public function of an operator: which implementation runs, and what it says of bad calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.compiler import is_compiling
from torch.overrides import handle_torch_function, has_torch_function

from fuseline.core.batching import in_front, one
from fuseline.core.select import Selector


def call(
    selector: Selector,
    validate: Callable[..., None],
    public: Callable[..., Any],
    impl: str,
    *args: Any,
) -> Any:
    """Runs `impl` on args, the first of which is a tensor; public(*args, impl) is what was called.

    validate(*args) refuses what no implementation takes.
    """
    x = args[0]
    if is_compiling():
        validate(*args)
        return selector.traced(impl, x.device.type)(*args)
    try:
        # Two attributes cost a fifth of `x.device.type`.
        device_type = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
        return selector.calls[impl, device_type](*args)
    except Exception:
        if has_torch_function(args):  # torch.fx's proxies
            return handle_torch_function(public, args, *args, impl)
        validate(*args)  # a good call pays nothing for the friendly message
        raise


def vmap_over_rows(validate: Callable[..., None]) -> Callable[..., Any]:
    """The vmap rule of an operator whose tensors all have leading dimensions that are rows."""

    def of(op: Callable[..., Any]) -> Callable[..., Any]:
        def rule(info: Any, in_dims: Any, *args: Any) -> Any:
            def each(change: Callable[..., Any], *more: Any) -> tuple[Any, ...]:
                pairs = zip(args, in_dims, strict=True)
                return tuple(
                    change(a, dim, *more) if isinstance(a, Tensor) else a for a, dim in pairs
                )

            if info.batch_size:
                validate(*each(one))
            out = op(*each(in_front, info.batch_size))
            return out, (0,) * len(out) if isinstance(out, tuple) else 0

        return rule

    return of
