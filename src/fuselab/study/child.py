"""The process that measures, with an answer a case: us by method, function and repeat."""

from __future__ import annotations

from typing import Any

from fuselab.processes import child
from fuselab.study.methods import MEASURES, Bench
from fuselab.study.record import names
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations.baselines import COMPILE
from fuselab.worker.protocol import Fatal, synchronize
from fuseline import table

EAGER = "eager"


def main() -> None:
    asked = child.question()
    kind = asked["device"].partition(":")[0]
    methods = [name for name in names(kind) if name in MEASURES]
    for case in asked["cases"]:
        said = _measured(asked["op"], case, asked["device"], methods, asked["repeats"])
        child.answer({"case": case} | said)


def _measured(op: str, case: str, device: str, methods: list[str], repeats: int) -> dict[str, Any]:
    """Return us by method and function, why a method gave none, and how many sets of inputs rotate.

    The methods take turns in each repeat, so that a drift of the clocks hits all of them alike.
    """
    spec = table.load()[op]
    wanted = next(one for one in spec.cases if one.name == case)
    kind = device.partition(":")[0]
    functions = {name: baselines.make(spec, name, kind) for name in (EAGER, COMPILE)}
    bench = Bench(spec, wanted, functions, device)
    found: dict[tuple[str, str], list[float]] = {}
    errors: dict[str, str] = {}
    for turn in range(repeats):
        first = turn % len(methods)
        for method in [*methods[first:], *methods[:first]]:
            if method in errors:
                continue
            synchronize(bench.device)  # one of them leaves work in the queue
            try:
                for name, us in MEASURES[method](bench).items():
                    found.setdefault((method, name), []).append(us)
            except (Exception, Fatal) as error:
                errors[method] = child.told(error)
    kept = [[*place, us] for place, us in found.items() if place[0] not in errors]
    return {"us": kept, "errors": errors, "sets": bench.sets}


if __name__ == "__main__":
    main()
