"""`--isolate`: an implementation that sees neither clock nor checks gets the same verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checker import isolated_ops
from click.testing import CliRunner

from fuselab import runner
from fuselab.command_line.cli import cli
from fuselab.model import ISOLATED, Group, Measurement
from fuselab.worker import process

FILE = Path(__file__).with_name("isolated_ops.py")
NAMES = ("eager", *(fn.__name__ for fn in isolated_ops.FUNCTIONS))
CAUGHT = {
    "ill_timed": ("incorrect", "wrong in a timed call"),
    "by_version": ("incorrect", "wrong in a timed call"),
    "later_nothing": ("incorrect", "wrong in a timed call"),
    "overwrites": ("invalid", "overwrote its input x"),
    "zeroes": ("invalid", "overwrote its input x"),
    "returns_a_list": ("incorrect", "a result is a int, expected a Tensor"),
    "speaks_early": ("invalid", "answered before"),
    "sends_code": ("error", "gave no answer that can be read"),
    "dies": ("crashed", "ended with code -9"),
    "raises": ("error", "ValueError: no such tile"),
}
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)]


def measured(device: str, direction: str, *impls: str) -> dict[str, Measurement]:
    place = ("isolated", "256x2048", "float32", direction, "contiguous", device)
    group = Group(*place, impls, str(FILE), precision="quick", timer=ISOLATED)
    with runner.Worker(process.main, device, timeout=120) as worker:
        (step,) = runner.run([group], worker)
    return {m.cell.impl: m for m in step.measurements}


def with_number(device: str, found: Measurement, direction: str = "fwd") -> Measurement:
    """Return the measurement, or another where a loaded machine took longer for no call than for
    20."""
    for _ in range(4):
        if "more than none" not in found.reason:
            break
        found = measured(device, direction, found.cell.impl)[found.cell.impl]
    assert found.status.has_number, found.reason
    return found


@pytest.mark.parametrize("device", DEVICES)
def test_each_gets_its_verdict_from_outside(device: str) -> None:
    if device != "cpu" and not torch.cuda.is_available():
        pytest.fail("torch sees no GPU")
    found = measured(device, "fwd", *NAMES, "ceiling")
    for name in ("eager", "exact", "orphans"):
        timed = with_number(device, found[name])
        assert timed.timer == ISOLATED
        assert timed.proof.isolated
        assert (timed.proof.checked_calls or 0) >= 3
    # While the clock runs, its thread may take half of the work; not before.
    foreseen = with_number(device, found["foresees"])
    assert min(foreseen.samples_us) > 0.4e6 * isolated_ops.SLOW_S
    for name, (status, reason) in CAUGHT.items():
        assert str(found[name].status) == status, (name, found[name].reason)
        assert reason in found[name].reason, name
    assert str(found["ceiling"].status) == "unsupported"


@pytest.mark.parametrize("device", DEVICES)
def test_a_backward_is_timed_from_outside(device: str) -> None:
    found = measured(device, "bwd", "eager", "exact")
    for timed in found.values():
        with_number(device, timed, "bwd")


def test_another_timer_is_refused() -> None:
    done = CliRunner().invoke(cli, ["run", "rms_norm", "--isolate", "--timer", "wall"])
    assert done.exit_code == 2
    assert "--isolate times from outside of the process, got --timer wall" in done.output
