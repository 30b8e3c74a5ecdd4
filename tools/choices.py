"""Which implementation serves which calls: docs/choices.md, from `unsupported` and the rules.

    python tools/choices.py            print the page
    python tools/choices.py --write    write it

No GPU is needed: what is asked knows metadata alone.
"""

from __future__ import annotations

import re
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from fuseline import table
from fuseline.core import onednn
from fuseline.core.selection import rules
from fuseline.core.selection.select import Choice, Selector, asked
from fuseline.core.selection.tuned import DIRECTIONS
from fuseline.core.specs.spec import Case, OpSpec

PAGE = Path(__file__).parents[1] / "docs" / "choices.md"
DEVICES = ("cuda", "cpu")
WORDS = {DIRECTIONS: "both", ("fwd",): "forward", ("bwd",): "backward"}
HEAD = """# Choices: which implementation serves which calls

`impl="auto"` takes the first implementation in order that can run on the device: `cuda`, `cpu`,
`triton`, then `eager` with a warning; of an operator that libraries alone serve, the first of them
that serves the call. A **rule** may put others first for some calls, forward and backward apart,
since what is saved in between belongs to the operator. Why: [decision
0022](decisions/0022-selection-with-reasons.md).
`print(fuseline.explain_choice(fuseline.layer_norm, x, weight, bias))` says what runs for a call,
and why no other.

A machine's rules are a file, `ops/<op>/rules/<machine>.json`, or the user's own,
`$FUSELINE_TUNED/<op>/rules/<machine>.json` (`fuseline/tuned` in `$XDG_CONFIG_HOME` or `~/.config`),
which wins. A machine is `sm_90` (H100, H200: by compute capability), `cpu`, or `any`, whose rules
hold beside those of all others. One without a file has the order alone. Several GPUs in one process
have the rules of the one that was current at the first call.

```sh
fuselab run layer_norm --suite wild --seed 1 --impl cuda --impl aten --out out/run
fuselab tune layer_norm --from out/run    # rules for what the run shows
```

A class of calls (direction, dtype, size class) gets a rule where the other implementation is faster
by the margin of `fuselab compare` in every decided cell of the run, and in three at least. `--by`
names what else tells classes apart: also `rows` and `dense`, by which results then depend on the
batch or on the layout; shipped rules never do.

```json
{"machine": "sm_90", "rules": [
  {"direction": "bwd", "where": {"dtype": ["float64"], "columns": [4097, null]},
   "impl": ["aten"], "evidence": {"run": "out/run", "cells": 5, "ratio": 0.71, "worst": 0.9}}
]}
```

A rule with `bad` (what is wrong) and `report` (its address) in place of evidence keeps "auto" from
an implementation there.

"""

UNSERVED = """## What implementations do not serve

Those that are not here serve all calls on their devices. "auto" takes those with a star only by a
rule, and others in order. `onednn` takes bfloat16 where the processor has AVX-512 or
AVX-NE-CONVERT.

| operator | implementation | device | direction | dtype of x | does not serve |
| --- | --- | --- | --- | --- | --- |
"""


def made(spec: OpSpec, case: Case, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Return the inputs of a problem on a device that need not be there."""
    inputs = spec.make_inputs(case, dtype, torch.device("cpu"), torch.Generator())
    mode = FakeTensorMode()

    @cache
    def there(t: torch.Tensor) -> torch.Tensor:
        return FakeTensor(mode, t.to("meta"), torch.device(device))

    return {n: there(t) if isinstance(t, torch.Tensor) else t for n, t in inputs.items()}


def selector_of(spec: OpSpec) -> Selector:
    ours = next(impl for impl in spec.implementations if impl.role == "ours")
    small = next(case for case in spec.cases if "check" in case.suites)
    return asked(ours.fn, **made(spec, small, spec.dtypes[0], "cpu")).selector


def has_its_own(spec: OpSpec) -> bool:
    """Return whether "auto" decides by arguments, and not for an operator that it is made of."""
    selector = selector_of(spec)
    return selector.auto is not None and selector.op == spec.name


@cache
def calls(op: str, device: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Return dtype and arguments of an operator's problems, an empty one with them."""
    spec, found = table.load()[op], []
    ours = next(impl for impl in spec.implementations if impl.role == "ours")
    cases = [case for case in spec.cases if "check" in case.suites]
    first = cases[0].args
    if "shape" in first:
        cases.append(Case("empty", {**first, "shape": (0, *first["shape"][1:])}))
    for dtype in spec.dtypes:
        for case in cases:
            try:
                told = asked(ours.fn, **made(spec, case, dtype, device))
            except ValueError:  # the operator has none that is empty
                continue
            if told.selector.op == spec.name:  # not handed to another operator
                found.append((str(dtype).removeprefix("torch."), told.call))
    return found


def is_of_another_kind(choice: Choice, device: str) -> bool:
    """Return whether an implementation is of other devices by its nature."""
    return (choice.unavailable(device) or "").startswith(("it needs", "Triton kernels run on"))


def why_not(choice: Choice, direction: str, device: str, args: tuple[Any, ...]) -> str:
    """Return why an implementation does not serve a call; that this torch has no GPU is no why."""
    reason = choice.unavailable(device) if device == "cpu" else None
    if reason is None and choice.unsupported is not None:
        reason = choice.unsupported(direction, *args)
    return re.sub(r"torch \S+ has", "torch has", reason or "").replace("torch.", "")


def lines(spec: OpSpec, choice: Choice, device: str) -> list[str]:
    """Return a line of the table for each reason of an implementation that serves in part."""
    found: dict[str, dict[str, dict[str, None]]] = {}
    for dtype, args in calls(spec.name, device):
        for direction in DIRECTIONS:
            if reason := why_not(choice, direction, device, args):
                found.setdefault(reason, {}).setdefault(direction, {})[dtype] = None
    said = [
        (WORDS[tuple(by)], ", ".join({d: None for one in by.values() for d in one}), reason)
        for reason, by in found.items()
    ]
    said = said or [("both", "all", "nothing: it serves all")]
    name = f"{choice.name}*" if choice.by_rule else choice.name
    return [f"| {spec.name} | {name} | {device} | {' | '.join(one)} |\n" for one in said]


def page() -> str:
    """Return the whole page."""
    specs = {op: spec for op, spec in table.load().items() if has_its_own(spec)}
    out = [HEAD, UNSERVED]
    with mock.patch.object(onednn, "BFLOAT16", True):  # as on a processor with AVX-512
        for spec in specs.values():
            for choice in selector_of(spec).choices:
                for device in DEVICES if choice.by_rule or choice.unsupported else ():
                    if not is_of_another_kind(choice, device):
                        out += lines(spec, choice, device)
    out.append("\n## Rules that are shipped\n\n")
    none = True
    for op, spec in specs.items():
        selector = selector_of(spec)
        assert selector.auto is not None
        for file in rules.shipped_files(op):
            for rule in rules.load(file, selector.auto.facts, selector.names):
                none = False
                line = f"- {op} on {file.stem}, {rule.direction}: {rule}"
                out.append(textwrap.fill(line, 100, subsequent_indent="  ") + "\n")
    out.append("None: decision 0022 says what was looked at.\n" if none else "")
    return "".join(out)


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page())
    else:
        sys.stdout.write(page())
