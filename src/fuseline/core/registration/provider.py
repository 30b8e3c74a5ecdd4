"""An implementation of an operator in Python: its kernels, and which calls they serve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fuseline.core.inputs import boundary

if TYPE_CHECKING:
    from fuseline.core.registration.contract import Contract

Function = Callable[..., Any]


@dataclass(frozen=True)
class Kernels:
    """One Python implementation: the functions behind its operators.

    `run` alone if forward only; no `fwd` where the contract has no `fwd_returns`.

    Those of Triton take `wrap`, applied to a kernel before its launch: identity in eager calls,
    torch's wrap_triton where a compiled graph traces through.
    """

    run: Function
    fwd: Function | None = None
    bwd: Function | None = None


@dataclass(frozen=True)
class Provider:
    """Kernels behind an operator of ours, mostly another project's, which serve some calls of it.

    unavailable  device type -> why they cannot run there, or None
    unsupported  (direction, *args of the forward) -> why they do not serve these, or None, from
                 metadata alone; None: they serve all

    through      whether a compiler's graph traces through them, as through ours in Triton, which
                 take `wrap`; else it calls them as they are
    by_rule      whether "auto" takes them only where a rule says so
    """

    name: str
    kernels: Kernels
    unavailable: Callable[[str], str | None]
    unsupported: Callable[..., str | None] | None = None
    through: bool = False
    by_rule: bool = True

    def refusing(self, contract: Contract, function: Function, *directions: str) -> Function:
        """Return the function, which raises RuntimeError for what is not served."""

        if self.unsupported is None:
            return function

        def call(*args: Any, **options: Any) -> Any:
            reason = None
            try:
                for direction in directions:
                    reason = reason or unsupported(direction, *args)
            except Exception:
                contract.fake(*args)  # names the argument, which reasons do not look at first
                raise
            if reason:
                raise RuntimeError(f"{contract.name}: impl {self.name!r} cannot run here: {reason}")
            return function(*args, **options)

        unsupported = self.unsupported
        return call

    def backward(self, contract: Contract) -> Function | None:
        """Return the backward, which raises RuntimeError for what is not served.

        That is asked with the arguments of the forward that it has, None in the place of others.
        """
        unsupported, bwd = self.unsupported, self.kernels.bwd
        if unsupported is None or bwd is None:
            return bwd
        has = boundary.names(contract.bwd_args)
        at = [has.index(n) if n in has else -1 for n in boundary.names(contract.args)]

        def call(*args: Any, **options: Any) -> Any:
            # The last ones may be left out for their defaults.
            given = (None if i < 0 else args[i] for i in at if i < len(args))
            if reason := unsupported("bwd", *given):
                raise RuntimeError(f"{contract.name}: impl {self.name!r} cannot run here: {reason}")
            return bwd(*args, **options)

        return call
