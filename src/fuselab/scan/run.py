"""Has a script scanned: recorded, ranked, measured, forecast, and run again with ours applied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from fuselab.report.files import replace as write
from fuselab.scan import measure, plan, trace
from fuselab.scan.costs import Rates
from fuselab.scan.forecast import compare, forecast
from fuselab.scan.measure import How
from fuselab.scan.rank import Ranking
from fuselab.scan.record import FAR, Scan, Served
from fuselab.scan.runs import Heard, Runs, Script, Told
from fuselab.scan.steps import MEANING
from fuselab.worker.recorded import Suite

SUITE = "suite.json"
# Beyond this the plain step was another when it was compared than when it was recorded.
MOVED = 0.1


@dataclass(frozen=True)
class Setting:
    """How calls are measured, by which rates of the device ceilings are known, what is applied."""

    how: How
    rates: Rates
    apply: bool = True


def scan(script: Script, setting: Setting, told: Told) -> Scan:
    """Return the scan of a script; what is known of one that fails is kept.

    Raises ScanError where not one step of it could be recorded.
    """
    runs = Runs(script, told)
    heard = runs.record()
    ranking = _ranking(heard, setting.rates)
    served = _measured(ranking, script, setting.how, told)
    if not setting.rates.known:
        ranking = _ranking(heard, Rates(None, measure.bandwidth_of(served)))
    plain = heard.seconds.get(plan.PLAIN) or heard.seconds[plan.PROFILE]
    host = heard.host.get(plan.PLAIN, ())
    said = forecast(plain, host, ranking.busy_us, ranking.operators, served, gpu=ranking.gpu)
    told("forecast", f"{said.plain_ms:.4g} ms a step now, {said.ms:.4g} ms with ours")
    outcome, why = None, ""
    if setting.apply and not heard.raised:
        outcome, why = runs.compare()
    found = Scan(
        Path(script.path).name,
        script.arguments,
        setting.how.device,
        MEANING[heard.kind],
        1e3 * said.plain_ms,
        max(0.0, 1e3 * said.plain_ms - ranking.busy_us),
        ranking.rows(),
        served,
        said,
        outcome,
        compare(said, outcome) if outcome else None,
        raised=heard.raised,
        ways=script.ways,
    )
    return replace(found, notes=tuple(_notes(found, heard, why)))


def _ranking(heard: Heard, rates: Rates) -> Ranking:
    steps = [trace.load(path) for path in heard.traces[plan.PROFILE]]
    covered = heard.traces.get(plan.COVER, ())
    patched = trace.load(covered[0]) if covered else None
    return Ranking(steps, patched, heard.served, rates, heard.list_dtype)


def _measured(ranking: Ranking, script: Script, how: How, told: Told) -> tuple[Served, ...]:
    """Write the suite of the served calls, measure it, and return them with their times."""
    served, suite = ranking.served(), script.folder / SUITE
    if not ranking.suite():
        return served
    write(suite, Suite(ranking.suite(), {"script": Path(script.path).name}).text())
    wanted = list(measure.groups(suite, served, how))
    found = measure.measured(wanted, how, script.folder, told)
    return tuple(measure.with_times(one, found, how.device) for one in served)


def _notes(found: Scan, heard: Heard, why: str) -> Iterator[str]:
    if heard.raised:
        yield f"the script failed: {heard.raised}"
    if why:
        yield f"not compared with a patched step: {why}"
    if not heard.traces.get(plan.COVER):
        yield "no patched step was recorded: which calls would be served is not known"
    elif not any(one.way != "call" for one in found.served):
        yield "no call of a step is served by fuseline.patch or fuseline.enable"
    if plan.PLAIN not in heard.seconds:
        yield "no step was timed without the profiler: the step's time has its cost in it"
    if found.compared and abs(found.compared.moved) > MOVED:
        moved = found.compared.moved
        yield f"the plain step took {moved:+.0%} when it was compared: others used the machine"
    if found.compared and abs(found.compared.off) > FAR:
        yield f"the forecast is off by {found.compared.off:+.0%}"
