"""Which implementation runs: decided from names and metadata, never from tensor data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, NamedTuple
from weakref import WeakSet

import torch

from fuseline.core.selection import rules
from fuseline.core.selection.rules import DTYPE, Fact, Rule, Rules
from fuseline.core.selection.tuned import DIRECTIONS

Function = Callable[..., Any]
# The name by which a public function is called to learn what "auto" would be asked.
ASK = "(ask)"
# All that this process has.
known: WeakSet[Selector] = WeakSet()


class Parts(NamedTuple):
    """The functions of one implementation: plain forward, forward that saves, backward.

    What is saved belongs to the operator: the backward of one follows the forward of any.
    """

    run: Function
    fwd: Function
    bwd: Function


@dataclass(frozen=True)
class Choice:
    """One implementation; `unavailable(device_type)` says why it cannot run there, or None.

    call         what eager code calls
    traced       what a compiler is to see
    unsupported  (direction, *args of the forward) -> why it does not serve these, or None, from
                 metadata alone; None: it serves all
    by_rule      whether "auto" takes it only where a rule names it
    eager        its functions as eager code calls them below autograd; None: it has none
    graph        the same as operators for a compiler's graph
    """

    name: str
    call: Function
    traced: Function
    unavailable: Callable[[str], str | None]
    unsupported: Callable[..., str | None] | None = None
    by_rule: bool = False
    eager: Parts | None = None
    graph: Parts | None = None


@dataclass(frozen=True)
class Auto:
    """What "auto" needs of an operator that several implementations serve, each in part.

    facts  what rules may ask of a call
    eager  (selector, device type) -> what eager code calls where arguments decide
    """

    facts: Mapping[str, Fact]
    eager: Callable[[Selector, str], Function]


class Asked(Exception):
    """Raised in place of a call by the name ASK: the operator, and what it was called with."""

    def __init__(self, selector: Selector, args: tuple[Any, ...]) -> None:
        super().__init__(selector.op)
        self.selector, self.call = selector, args


def asked(public: Function, *args: Any, **kwargs: Any) -> Asked:
    """Return what a public function would look up for these arguments; nothing is computed.

    Raises what the call would raise of bad arguments; TypeError if it looks nothing up.
    """
    try:
        takes = "impl" in signature(public).parameters
    except (TypeError, ValueError):  # no function, or one of C's
        takes = False
    if takes:
        try:
            public(*args, **{**kwargs, "impl": ASK})
        except Asked as told:
            return told
    name = getattr(public, "__name__", repr(public))
    raise TypeError(f"op is {name}, expected a public function of fuseline")


class Selector:
    """The implementations of one operator in order of preference; the last is the fallback.

    calls  (name or "auto", device type) -> the function; a look-up raises if the named one cannot
           run on this device. "auto" is the first that can; if that is the fallback, a warning
           says so once. Rules may name others for some calls (`rules.py`), forward and backward
           apart; they are read when "auto" is first looked up.

    `on_meta` serves tensors without data, whatever the binary holds.
    """

    def __init__(
        self, op: str, choices: tuple[Choice, ...], on_meta: Function, auto: Auto | None = None
    ) -> None:
        self.op = op
        self.choices = choices
        self.names = tuple(choice.name for choice in choices)
        self.auto = auto
        # What compilers see of "auto" where arguments decide; set by who registers it.
        self.traced_auto: Function | None = None
        # Decided once: a look-up costs an eager call 0.1 us, and Dynamo sees a constant.
        decided = {
            (impl, device_type): choice
            for impl in ("auto", *self.names)
            for device_type in ("cuda", "cpu", "meta")
            if (choice := self._decide(impl, device_type)) is not None
        }
        self._traced = {key: choice.traced for key, choice in decided.items()}
        calls = {k: c.call for k, c in decided.items() if auto is None or k[0] != "auto"}
        self.calls = _Calls(self, calls)
        self.calls["auto", "meta"] = self._traced["auto", "meta"] = on_meta
        self._forget()
        known.add(self)

    def is_public(self, public: Function) -> None:
        """Take the public operator, which is "auto", for what compilers and exports see of it."""
        self.traced_auto = public
        self._traced |= {("auto", device_type): public for device_type in ("cuda", "cpu", "meta")}

    def _forget(self) -> None:
        """Read the rules again at the next look-up."""
        self._rules: dict[str, Rules] = {}
        self._picks: dict[tuple[str, str], str | Function] = {}
        for device_type in ("cuda", "cpu") if self.auto else ():
            self.calls.pop(("auto", device_type), None)

    def traced(self, impl: str, device_type: str) -> Function:
        """Return what a compiler sees of an implementation; raise as a look-up in `calls` does."""
        call = self._traced.get((impl, device_type))
        if call is None:
            return self.fallback(impl, device_type).traced
        # What torch.compiler.is_exporting() returns, which Dynamo before torch 2.14 takes for True
        # always (pytorch#176347). An exported program goes to other machines.
        exporting = torch.compiler._is_exporting_flag
        if impl == "auto" and self.traced_auto and device_type != "meta" and not exporting:
            return self.traced_auto
        return call

    def unavailable(self, impl: str, device_type: str) -> str | None:
        """Return why `impl` cannot run on a device type, or None; raise ValueError if unknown."""
        return self.choice(impl).unavailable(device_type)

    def choice(self, impl: str) -> Choice:
        """Return an implementation by name; raise ValueError if there is none."""
        for choice in self.choices:
            if choice.name == impl:
                return choice
        have = ", ".join(("auto", *self.names))
        raise ValueError(f"{self.op}: impl is {impl!r}, expected one of: {have}")

    @property
    def order(self) -> tuple[Choice, ...]:
        """What "auto" takes without a rule, in order, but for the fallback."""
        return tuple(choice for choice in self.choices[:-1] if not choice.by_rule)

    def fallback(self, impl: str, device_type: str) -> Choice:
        """Return what serves "auto" if nothing else can; raise RuntimeError for a name."""
        if impl != "auto":
            reason = self.unavailable(impl, device_type)
            raise RuntimeError(f"{self.op}: impl {impl!r} cannot run here: {reason}")
        return self.choices[-1]

    def available(self) -> list[tuple[str, str]]:
        """Return name and device type of each implementation that can run in this process."""
        return sorted(key for key in self._traced if key[0] in self.names)

    def _decide(self, impl: str, device_type: str) -> Choice | None:
        choices = self.order if impl == "auto" else self.choices
        for choice in choices:
            if impl in ("auto", choice.name) and choice.unavailable(device_type) is None:
                return choice
        return None

    def rules(self, device_type: str) -> Rules:
        """Return the rules for a kind of device, which are read once."""
        if device_type not in self._rules:
            name = rules.machine(device_type)
            self._rules[device_type] = (
                rules.find(self.op, name, self.auto.facts, self.names) if self.auto else Rules(name)
            )
        return self._rules[device_type]

    def refusal(self, name: str, direction: str, device_type: str, *args: Any) -> str | None:
        """Return why an implementation must not serve a call in one direction, or None."""
        choice = self.choice(name)
        if reason := choice.unavailable(device_type):
            return reason
        facts = self.auto.facts if self.auto else {}
        mine = self.rules(device_type).of(direction)
        reasons = (refuse(*args) for refuse in _refusals(choice, direction, facts, mine))
        return next(filter(None, reasons), None)

    def pick(self, direction: str, device_type: str) -> str | Function:
        """Return the name that serves "auto" in one direction or, where arguments decide it,
        (*args) -> name.
        """
        key = (direction, device_type)
        if key not in self._picks:
            self._picks[key] = self._pick(direction, device_type)
        return self._picks[key]

    def _pick(self, direction: str, device_type: str) -> str | Function:
        usual = self._decide("auto", device_type)
        mine = self.rules(device_type).of(direction)
        if not mine and (usual is None or usual.unsupported is None):
            return (usual or self.choices[-1]).name
        search = self._search(direction, device_type)
        if usual is None or usual.unsupported or any(DTYPE not in rule.where for rule in mine):
            return search
        # Most calls are told from those that the rules are about by the dtype alone.
        dtypes = {dtype for rule in mine for dtype in getattr(rule.where[DTYPE], "values", ())}
        name = usual.name
        return lambda *args: search(*args) if args[0].dtype in dtypes else name

    def _search(self, direction: str, device_type: str) -> Callable[..., str]:
        """Return (*args) -> the first name of the first rule that fits, then of the order, that is
        not refused. All that does not depend on arguments is looked up here.
        """
        assert self.auto is not None
        facts, usual = self.auto.facts, tuple(choice.name for choice in self.order)
        mine = self.rules(device_type).of(direction)
        here = [c for c in self.choices[:-1] if c.unavailable(device_type) is None]
        refusals = {c.name: _refusals(c, direction, facts, mine) for c in here}
        orders = [(_fits(rule, facts), (*rule.impl, *usual)) for rule in mine if not rule.bad]
        orders.append((lambda *args: True, usual))
        steps = [
            (fits, [(n, refusals[n]) for n in names if n in refusals]) for fits, names in orders
        ]
        fallback = self.names[-1]

        def search(*args: Any) -> str:
            for fits, names in steps:
                if fits(*args):
                    for name, refuses in names:
                        for refuse in refuses:  # any() of a generator costs a call 0.4 us
                            if refuse(*args):
                                break
                        else:
                            return name
                    break
            return fallback

        return search

    def asked(self, *args: Any) -> Any:
        """Take no call: tell what it was."""
        raise Asked(self, args)

    def warn(self, device_type: str, *args: Any) -> None:
        """Say that the fallback runs and why no other does; args: where they are why."""

        def reason(name: str) -> str | None:
            found = (self.refusal(name, d, device_type, *args) for d in DIRECTIONS)
            return next(filter(None, found), None) if args else self.unavailable(name, device_type)

        why = "; ".join(f"{choice.name}: {reason(choice.name)}" for choice in self.order)
        warnings.warn(
            f"fuseline.{self.op} runs its slow {self.choices[-1].name!r} implementation on "
            f"{device_type}, because no other can: {why}",
            RuntimeWarning,
            stacklevel=4,
        )


def _refusals(
    choice: Choice, direction: str, facts: Mapping[str, Fact], mine: Sequence[Rule]
) -> list[Callable[..., str | None]]:
    """Return what may refuse a call to an implementation: (*args) -> why, or None."""
    own = [partial(choice.unsupported, direction)] if choice.unsupported else []

    def known(rule: Rule) -> Callable[..., str | None]:
        fits = _fits(rule, facts)
        return lambda *args: str(rule) if fits(*args) else None

    return own + [known(rule) for rule in mine if rule.bad and choice.name in rule.impl]


def _fits(rule: Rule, facts: Mapping[str, Fact]) -> Callable[..., bool]:
    """Return (*args) -> whether the rule is for a call."""
    tests = [(facts[name].of, wanted.holds) for name, wanted in rule.where.items()]

    def fits(*args: Any) -> bool:
        return all(holds(of(*args)) for of, holds in tests)

    return fits


class _Calls(dict[tuple[str, str], Function]):
    """What eager code calls; the first look at what was not decided decides it."""

    def __init__(self, selector: Selector, known: dict[tuple[str, str], Function]) -> None:
        super().__init__(known)
        self._selector = selector

    def __missing__(self, key: tuple[str, str]) -> Function:
        selector, (impl, device_type) = self._selector, key
        if impl == ASK:
            return selector.asked
        if impl != "auto":
            selector.fallback(*key)
        picks = {selector.pick(direction, device_type) for direction in DIRECTIONS}
        name = picks.pop()
        if selector.auto and (picks or not isinstance(name, str)):
            self[key] = selector.auto.eager(selector, device_type)
            return self[key]
        choice = selector.choice(str(name))
        self[key] = choice.call
        if choice is selector.choices[-1]:
            selector.warn(device_type)
        return choice.call
