"""The process that looks at a pair: what its parts are, and what would explain a verdict.

It gives no verdict on results: it tells what a solution does by name, one answer at a time, so that
what is known stays when the solution ends the process.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from fuselab.judge import source
from fuselab.judge.behaviour import Looked, copied, findings
from fuselab.judge.compared import near
from fuselab.judge.watched import Watch
from fuselab.processes import child
from fuselab.worker.footprint import cpu_profile
from fuselab.worker.operators import pairs
from fuselab.worker.operators.pairs import Pair, Problem
from fuseline.testing.oracle import accuracy
from fuseline.testing.place import told

# Of two sets of inputs; what the lab measures with are others.
SEEDS = (1_234_567, 7_654_321)
FALLBACK = "float32"


def main() -> None:
    warnings.simplefilter("ignore")
    pair = Pair.of(child.question()["source"])
    try:
        with torch.no_grad():
            looked, facts = _problem(pair)
    except (Exception, SystemExit) as error:
        child.answer({"fault": told(error)})
        return
    child.answer({"problem": facts})
    if "fault" not in facts:
        _solution(looked)


def _problem(pair: Pair) -> tuple[Looked, dict[str, Any]]:
    """Return the problem with two sets of inputs and results, and what there is to say of it."""
    problem = Problem(pair)
    given = tuple(problem.drawn.under(seed) for seed in SEEDS)
    once, again, other = (
        accuracy.results(problem.model(*copied(inputs).values()))
        for inputs in (given[0], given[0], given[1])
    )
    exact = pairs.in_fp64(problem.model)(**copied(given[0]))
    looked = Looked(problem, given, (once, other), exact)
    facts: dict[str, Any] = {"dtype": _dtype(once), "constants": problem.drawn.constants}
    facts["operators"] = cpu_profile(lambda: problem.model(*looked.given[0].values()))[1]
    facts["weak"] = bool(once) and near(once, other)
    if not near(once, again):
        facts["fault"] = "Model gives other results for the same inputs: random, or a race"
    elif not near(once, exact):
        facts["fault"] = "Model in fp64 gives other results than Model"
    return looked, facts


def _dtype(results: tuple[Tensor, ...]) -> str:
    floating = [y.dtype for y in results if y.is_floating_point()]
    return str(floating[0]).removeprefix("torch.") if floating else FALLBACK


def _solution(looked: Looked) -> None:
    """Answer with each finding, and at last with what the solution's calls run."""
    path = looked.problem.pair.solution
    if lines := source.catches(path):
        numbers = ", ".join(map(str, lines))
        child.answer({"finding": ["catches", f"line {numbers}"]})
    watch = Watch(path, looked.problem.pair.problem)
    try:
        with torch.no_grad():
            with watch:
                module = pairs.solution(looked.problem)

            def call(*inputs: Any) -> Any:
                with watch:
                    return module(*inputs)

            for name, text in findings(looked, call, module):
                child.answer({"finding": [name, text]})
            operators = cpu_profile(lambda: module(*looked.given[0].values()))[1]
    except (Exception, SystemExit) as error:
        child.answer({"raised": told(error)})
        return
    finally:
        for name, text in watch.findings():
            child.answer({"finding": [name, text]})
    child.answer({"operators": operators})


if __name__ == "__main__":
    main()
