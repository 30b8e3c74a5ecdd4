"""Verdicts as text, and as the files of a folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fuselab.judge.record import MEANING, REFUSED, SOLUTION, Outcome, Verdict
from fuselab.output.files import replace
from fuselab.output.page import environment
from fuselab.output.plain import plain

JSON, PAGE = "judge.json", "judge.html"


def summary(verdict: Verdict) -> str:
    """Return a verdict on one line."""
    if verdict.outcome is not Outcome.RIGHT:
        warned = [f"warning: {f}" for f in verdict.warnings if f.name not in REFUSED]
        return plain(
            "; ".join((f"{verdict.outcome}: {verdict.reasons[0]}", *verdict.reasons[1:], *warned))
        )
    mine = verdict.times[SOLUTION]
    speedups = [
        f"{s.ratio:.2f} x {name}'s speed [{s.low:.2f}, {s.high:.2f}]"
        for name, s in verdict.speedups.items()
    ]
    time = f"{mine.us:.4g} us [{mine.low:.4g}, {mine.high:.4g}]"
    warned = [f"warning: {finding}" for finding in verdict.warnings]
    return plain("; ".join((f"right, {time}", *speedups, f"runs {verdict.runs}", *warned)))


def to_text(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield a line for each verdict, and one that counts them."""
    width = max((len(verdict.name) for verdict in verdicts), default=0)
    for verdict in verdicts:
        yield f"{plain(verdict.name):<{width}}  {summary(verdict)}"
    counts = Counter(str(verdict.outcome) for verdict in verdicts)
    warned = sum(bool(v.warnings) for v in verdicts if v.outcome is Outcome.RIGHT)
    yield ", ".join(f"{n} {outcome}" for outcome, n in counts.items()) + f"; {warned} with warnings"


def write(
    verdicts: Sequence[Verdict], folder: Path, about: Mapping[str, Any], setting: Mapping[str, Any]
) -> Path:
    """Write DIR/judge.json and DIR/judge.html, each in one step; return the page's path."""
    record = {
        "environment": about,
        "setting": setting,
        "verdicts": [verdict.to_record() for verdict in verdicts],
    }
    replace(folder / JSON, json.dumps(record, indent=1))
    template = environment(Path(__file__).with_name("templates")).get_template("judge.html")
    baselines = list(dict.fromkeys(name for v in verdicts for name in v.speedups))
    page = template.render(
        verdicts=verdicts,
        counts=Counter(str(v.outcome) for v in verdicts),
        machine=about.get("gpu") or about.get("cpu") or about.get("device"),
        torch=about.get("torch"),
        setting=setting,
        baselines=baselines,
        meaning=MEANING,
    )
    return replace(folder / PAGE, page)
