"""Has children train all variants, one after the other, and tells what they gave."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fuselab.processes import caches, child
from fuselab.training.record import LIMIT, Missing, Row, Trained, apart, trained
from fuselab.training.setting import SETTINGS


def bench(
    variants: Sequence[str], size: str, steps: int, device: str, seconds: float
) -> Iterator[Row]:
    """Yield a row a variant, as it is done."""
    for variant in variants:
        yield _one(variant, size, steps, device, seconds)


def _one(variant: str, size: str, steps: int, device: str, seconds: float) -> Row:
    question = {"variant": variant, "size": size, "steps": steps, "device": device}
    with caches.fresh() as env:
        env["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
        answers, why = child.ask("fuselab.training.child", question, seconds, env)
    if not answers:
        return Missing(variant, why)
    (said,) = answers
    if "missing" in said:
        return Missing(variant, said["missing"], said["failed"])
    found = said["trained"]
    return Trained(
        **{**found, "losses": tuple(found["losses"]), "seconds": tuple(found["seconds"])}
    )


def to_markdown(rows: Sequence[Row], size: str, device: str) -> str:
    """Return the table, and what follows from it."""
    s = SETTINGS[size]
    ran = trained(rows)
    steps = len(ran[0].losses) if ran else 0
    lines = [
        f"{size}: {s.parameters / 1e6:.1f} M weights, {s.layers} layers of width {s.width}, "
        f"{s.batch} x {s.length} tokens a step, {s.dtype}, {steps} steps, {device}",
        "",
        "| variant | with | step, ms | tokens/s | compile, s | peak, MB | first loss | last loss "
        "| largest loss difference |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [_line(row, ran, s.batch * s.length) for row in rows]
    if noisy := [f"- {row.variant}: noisy: {row.noise}" for row in ran if row.noise]:
        lines += ["", *noisy]
    if s.dtype == "float32" and ran:
        far = apart(rows)
        lines += ["", f"More than {LIMIT:g} from {ran[0].variant}: {', '.join(far) or 'none'}."]
    return "\n".join(lines) + "\n"


def _line(row: Row, ran: Sequence[Trained], tokens: int) -> str:
    if isinstance(row, Missing):
        return f"| {row.variant} | {row.why} |" + " |" * 7
    step = f"{1e3 * row.step:.2f}" + (" (noisy)" if row.noise else "")
    return (
        f"| {row.variant} | {row.framework} | {step} | {tokens / row.step:.0f} | "
        f"{row.compile:.1f} | {row.peak / 1e6:.0f} | {row.losses[0]:.5f} | {row.losses[-1]:.5f} | "
        f"{row.difference(ran[0]):.1e} |"
    )
