"""Runs of random cells, of all statuses and with texts that would break a careless page."""

from __future__ import annotations

import random
from typing import Any

from fuselab.model import Accuracy, Group, Measurement, Proof, Status
from fuselab.planning.plan import CEILING, ceiling_group
from fuselab.report.shown import Shown

IMPLS = ("eager", "compile", "native", "triton", "cuda")
ENVIRONMENT = {"id": "e1", "device": "cuda", "gpu": "H200", "torch": "2.13", "commit": "abc"}
SPAN = ("2026-01-02T03:04:05+00:00", "2026-01-02T04:04:05+00:00")
FAILED = [status for status in Status if not status.has_number]


def shown(
    seed: int, ops: int = 2, rows: int = 4, columns: int = 5, *, payload: str = "", name: str = "A"
) -> Shown:
    """Return a run of grids of rows x columns cases, forward in fp32 and backward in bf16; 2 of 100
    cells have no time, unless eager's.

    payload: what every text that users give contains.
    """
    draw = random.Random(seed)
    peak = ceiling_group("cuda")
    found = [_timed(draw, peak, "copy", 2000.0, 8 << 30), _timed(draw, peak, "add", 3e3, 12 << 30)]
    for op in range(ops):
        for direction, dtype in (("fwd", "float32"), ("bwd", "bfloat16")):
            for m in range(rows):
                for n in range(columns):
                    case = f"{16 << m}x{61 << n}{payload}"
                    group = Group(
                        f"op{op}{payload}", case, dtype, direction, "contiguous", "cuda", IMPLS
                    )
                    found += _group(draw, group, 8 << (m + n + 10), payload)
    return Shown(name, f"out/{payload or 'run'}", found, [{**ENVIRONMENT, "user": payload}], SPAN)


def _group(draw: random.Random, group: Group, nbytes: int, payload: str) -> list[Measurement]:
    limit = 2 + nbytes / 3e6
    found = [_timed(draw, group, CEILING, limit, nbytes, role=CEILING, mix="1R1W")]
    for impl in IMPLS:
        if impl != "eager" and draw.random() < 0.02:
            reason = f"because <{draw.random()}>{payload}"
            found.append(Measurement(group.cell(impl), draw.choice(FAILED), reason,
                                     environment="e1"))  # fmt: skip
        else:
            us = limit * draw.uniform(1, 4)
            found.append(_timed(draw, group, impl, us, nbytes, chosen=f"{impl} 1{payload}"))
    return found


def _timed(
    draw: random.Random, group: Group, impl: str, us: float, nbytes: int, **proof: Any
) -> Measurement:
    samples = tuple(us * (1 + draw.gauss(0, 0.01)) for _ in range(60))
    kernel = f"void {impl}_kernel<float, {draw.randrange(8)}>({group.op}&)"
    return Measurement(
        group.cell(impl),
        Status.OK,
        timer="cupti",
        samples_us=samples,
        hot_us=samples[:9],
        host_us=20 * draw.random(),
        accuracy=None if proof.get("role") else Accuracy(draw.random(), draw.random(), 1.5, 0.7, 2),
        peak_bytes=draw.randrange(1 << 30),
        buffer_bytes=2 * nbytes,
        ideal_bytes=nbytes,
        flops=draw.randrange(1, 9) * nbytes,
        proof=Proof(kernels={kernel: 1}, launches=1, sets=3, sm_mhz=(1980,) * 5, **proof),
        code=f"{draw.randrange(4):08x}",
        environment="e1",
    )
