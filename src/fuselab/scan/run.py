"""Has a script scanned: recorded, ranked, measured, forecast, and run again with ours applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fuselab.output.files import replace as write
from fuselab.scan import measure
from fuselab.scan.costs import Rates
from fuselab.scan.forecast import compare, forecast
from fuselab.scan.measure import How
from fuselab.scan.rank import BY_NAME, EAGER, Ranking, identity, on_gpu
from fuselab.scan.record import FAR, Row, Scan, Served
from fuselab.scan.script import plan
from fuselab.scan.script.runs import Heard, Runs, Script, Told
from fuselab.scan.script.steps import MEANING
from fuselab.scan.traces import foreign, trace
from fuselab.scan.traces.calls import merged
from fuselab.scan.traces.foreign import Foreign
from fuselab.scan.traces.trace import Event
from fuselab.worker.operators.recorded import Recorded, Suite

SUITE = "suite.json"
# Beyond this the plain step was another when it was compared than when it was recorded.
MOVED = 0.1
# Times by operator are the profiler's, as far as that.
AGREED = 0.05


@dataclass(frozen=True)
class Setting:
    """How calls are measured, by which rates of a device ceilings are known, whether to apply."""

    how: How
    rates: Callable[[str], Rates]
    apply: bool = True

    def on(self, gpu: bool) -> Setting:
        """Return the setting for what ran on a GPU, or did not, whatever device was chosen."""
        kind = "cuda" if gpu else "cpu"
        if self.how.device.startswith(kind):
            return self
        return replace(self, how=replace(self.how, device="cuda:0" if gpu else kind))


def scan(script: Script, setting: Setting, told: Told) -> Scan:
    """Return the scan of a script; what is known of one that fails is kept.

    Raises ScanError where not one step of it could be recorded.
    """
    runs = Runs(script, told)
    heard = runs.record()
    steps = [trace.load(path) for path in heard.traces[plan.PROFILE]]
    setting = setting.on(on_gpu(steps))
    rates = setting.rates(setting.how.device)
    ranking = _ranking(steps, heard, rates)
    served = _measured(ranking.served(), ranking.suite(), script.path, script.folder, setting, told)
    if not rates.known:
        ranking = _ranking(steps, heard, Rates(None, measure.bandwidth_of(served)))
    plain = heard.seconds.get(plan.PLAIN) or heard.seconds[plan.PROFILE]
    host = heard.host.get(plan.PLAIN, ())
    said = forecast(
        *(plain, host, heard.seconds[plan.PROFILE], ranking.busy_us, ranking.operators, served),
        gpu=ranking.gpu,
    )
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
        ranking.disagreement(heard.tables[plan.PROFILE]),
        raised=heard.raised,
        ways=script.ways,
    )
    notes = _notes(found, heard, why, ranking.compiled)
    return replace(found, notes=tuple(notes))


def _ranking(steps: Sequence[Sequence[Event]], heard: Heard, rates: Rates) -> Ranking:
    covered = heard.traces.get(plan.COVER, ())
    patched = trace.load(covered[0]) if covered else None
    return Ranking(steps, patched, heard.served, rates, heard.list_dtype)


def scan_of(path: str, folder: Path, setting: Setting, told: Told) -> Scan:
    """Return the scan of what another tool recorded: a trace, or a table of calls.

    Raises PlanError for a file that has none.
    """
    rows: tuple[Row, ...] = ()
    busy_us, what = 0.0, "all that the file has"
    if foreign.is_trace(path):
        events = trace.load(path)
        setting = setting.on(on_gpu([events]))
        ranking = Ranking([events], None, {}, setting.rates(setting.how.device))
        served, suite = ranking.served(), ranking.suite()
        rows, busy_us, what = ranking.rows(), ranking.busy_us, "the whole trace"
    else:
        served, suite = _of_table(foreign.read(path), setting.how.device)
    served = _measured(served, suite, path, folder, setting, told)
    name, device = Path(path).name, setting.how.device
    return Scan(name, (), device, what, busy_us, 0.0, rows, served, ways=())


def _of_table(
    found: Sequence[Foreign], device: str
) -> tuple[tuple[Served, ...], tuple[Recorded, ...]]:
    suite = merged([one.call for one in found])
    us = {identity(one.call): 0.0 for one in found}
    for one in found:
        us[identity(one.call)] += one.us
    kind = device.split(":")[0]
    served = (
        Served(c.op, c.name, BY_NAME, kind, c.count, {"fwd": us[identity(c)]}, EAGER) for c in suite
    )
    return tuple(served), tuple(suite)


def _measured(
    served: tuple[Served, ...],
    suite: tuple[Recorded, ...],
    source: str,
    folder: Path,
    setting: Setting,
    told: Told,
) -> tuple[Served, ...]:
    """Write the suite of the served calls, measure it, and return them with their times."""
    if not suite:
        return served
    file = folder / SUITE
    write(file, Suite(suite, {"from": Path(source).name}).text())
    wanted = list(measure.groups(file, served, setting.how))
    found = measure.measured(wanted, setting.how, folder, told)
    return tuple(measure.with_times(one, found, setting.how.device) for one in served)


def _notes(found: Scan, heard: Heard, why: str, compiled: bool) -> Iterator[str]:
    if heard.raised:
        yield f"the script failed: {heard.raised}"
    if heard.load:
        yield f"the plain step that the forecast begins from is doubtful: {heard.load}"
    if heard.gpu and found.device == "cpu":
        yield "the script has memory of a GPU, and the profiler saw no kernel: times are the host's"
    if why and found.outcome:
        yield f"the outcome is doubtful: {why}"
    elif why:
        yield f"not compared with a patched step: {why}"
    if not heard.traces.get(plan.COVER):
        yield "no patched step was recorded: which calls would be served is not known"
    elif not any(one.way != "call" for one in found.served):
        yield "no call of a step is served by fuseline.patch or fuseline.enable"
    if found.disagreement > AGREED:
        yield f"times by operator differ from the profiler's table by {found.disagreement:.0%}"
    if compiled:
        yield "of graphs that torch.compile made nothing is forecast: they are rows as a whole"
    if plan.PLAIN not in heard.seconds:
        yield "no step was timed without the profiler: the step's time has its cost in it"
    if found.compared and abs(found.compared.moved) > MOVED:
        moved = found.compared.moved
        yield f"the plain step took {moved:+.0%} when it was compared: others used the machine"
    if found.compared and abs(found.compared.off) > FAR:
        yield f"the forecast is off by {found.compared.off:+.0%}"
