"""fuselab candidates: which configuration won how often, and the verb; the tuner needs a GPU."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest
import torch

from fuselab.candidates import choices
from fuselab.candidates.record import Candidate, Kernel, Tuned, from_record, to_markdown
from fuselab.command_line.cli import command

FAST = Candidate("XBLOCK 1", (10.0, 12.0, 11.0), 32, 0, 64)
OTHER = Candidate("XBLOCK 8", (11.0, 11.0, 12.0), None, None, None)
KERNEL = Kernel("triton_red", "reduction", "{'x': 8}", "INNER", (OTHER, FAST), "XBLOCK 1")


class Choice:
    def __init__(self, name: str) -> None:
        self.name, self.input_nodes = name, [self]

    def get_size(self) -> list[int]:
        return [2, 3]


def test_winners_are_counted_by_tuning() -> None:
    assert KERNEL.winners == {"XBLOCK 1": 2, "XBLOCK 8": 1}
    assert "of 3 tunings: XBLOCK 1 2, XBLOCK 8 1; the second is 0.0 % slower" in KERNEL.why


def test_one_configuration_is_no_choice() -> None:
    alone = Kernel("k", "pointwise", "", "", (FAST,), "XBLOCK 1")
    assert alone.why.startswith("nothing to choose")


def test_of_many_winners_three_are_told() -> None:
    each = [
        Candidate(f"XBLOCK {n}", tuple(float(n != i) for i in range(5)), None, None, None)
        for n in range(5)
    ]
    assert Kernel("k", "pointwise", "", "", tuple(each), "XBLOCK 0").why.count("XBLOCK") == 3


def test_an_algorithm_that_failed_once_is_left_out() -> None:
    mm, other = Choice("bias_addmm"), Choice("mm_7")
    rounds = [{mm: 2.0, other: math.inf}, {mm: 1.0, other: 1.0}]
    kernel = choices.kernel(rounds)
    assert (kernel.name, kernel.size_hints, kernel.kept) == ("bias_addmm", "(2, 3)", "bias_addmm")
    assert [(c.config, c.us) for c in kernel.candidates] == [("bias_addmm", (2000.0, 1000.0))]


def test_tables_and_records() -> None:
    found = [Tuned("softmax", True, (KERNEL,)), Tuned("mlp", False, error="not reached")]
    assert [from_record(json.loads(json.dumps(asdict(one)))) for one in found] == found
    table = to_markdown(found, "here")
    assert "| XBLOCK 1 **kept** | 11.00 | 10.00 | 12.00 | 32 | 0 | 64 |" in table
    assert "| XBLOCK 8 | 11.00 | 11.00 | 12.00 | - | - | - |" in table
    assert "## mlp, max-autotune off\n\nnot reached" in table


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["candidates", "conv"]) == 2
    assert "SUBJECT: got 'conv'" in capsys.readouterr().err
    assert command(["candidates", "softmax", "--device", "cpu"]) == 2
    assert "Inductor tunes nothing on a CPU" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_tuner_is_seen(capfd: pytest.CaptureFixture[str]) -> None:
    assert command(["candidates", "softmax", "--json"]) == 0
    off, on = json.loads(capfd.readouterr().out)
    assert len(on["kernels"][0]["candidates"]) > len(off["kernels"][0]["candidates"]) > 1
    for kernel in (*off["kernels"], *on["kernels"]):
        assert kernel["kept"] in [c["config"] for c in kernel["candidates"]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_choice_of_an_algorithm_is_seen() -> None:
    a = torch.randn(512, 512, device="cuda")
    with choices.watched(2) as found:
        torch.compile(torch.mm, options={"max_autotune": True})(a, a)
    (kernel,) = found
    assert kernel.size_hints == "(512, 512) x (512, 512)"
    assert kernel.kept in [c.config for c in kernel.candidates]
    templates = [c for c in kernel.candidates if "tile" in c.config]
    assert all(c.registers and len(c.us) == 2 for c in templates)
    assert 1 < len(templates) < len(kernel.candidates)
