"""fuselab hlo: what the texts of modules say, and the verb."""

from __future__ import annotations

import json

import pytest

from fuselab.command_line.cli import command
from fuselab.hlo.module import parse, stable_operations

TEXT = """HloModule jit_f, is_scheduled=true

%fused (param_0: f32[4,8]) -> f32[4] {
  %param_0 = f32[4,8]{1,0} parameter(0)
  %mul.0 = f32[4,8]{1,0} multiply(%param_0, %param_0), metadata={op_name="jit(f)/mul"}
  %constant.1 = f32[] constant(0)
  ROOT %reduce.0 = f32[4]{0} reduce(%mul.0, %constant.1), dimensions={1}, to_apply=%add
}

ENTRY %main.2 (x.1: f32[4,8]) -> (f32[4], f32[4]) {
  %x.1 = f32[4,8]{1,0} parameter(0)
  %fusion = f32[4]{0} fusion(%x.1), kind=kLoop, calls=%fused
  %call.1 = (f32[4]{0}, /*index=1*/f32[4]{0}) custom-call(%fusion), custom_call_target="our_norm"
  %part = f32[4]{0} get-tuple-element(%call.1), index=0
  ROOT %tuple = (f32[4]{0}, f32[4]{0}) tuple(%part, %fusion)
}
"""


def test_steps_fusions_and_custom_calls():
    module = parse(TEXT)
    assert module.steps == ("fusion", "custom-call")
    assert module.custom_calls == ("our_norm",)
    (fusion,) = module.fusions
    assert (fusion.name, fusion.kind, fusion.shape) == ("fusion", "kLoop", "f32[4]{0}")
    assert fusion.members == ("multiply", "reduce")


def test_a_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        parse("HloModule nothing")


def test_stable_operations_are_counted_without_constants():
    text = "%0 = stablehlo.add %a, %b\n%1 = stablehlo.constant dense<1>\n%2 = stablehlo.add %0, %1"
    assert stable_operations(text) == {"add": 2}


def test_rms_norm_forward_and_backward(tmp_path, capsys):
    pytest.importorskip("jax")
    assert command(["hlo", "rms_norm", "--json", "--out", str(tmp_path)]) == 0
    forward, backward = json.loads(capsys.readouterr().out)
    assert (forward["direction"], backward["direction"]) == ("fwd", "bwd")
    assert forward["operations"]["rsqrt"] == 1
    assert forward["module"]["fusions"]
    assert forward["accessed"] >= forward["ideal"] > 0
    assert forward["memory"]["outputs"] > 0
    page = (tmp_path / "hlo.html").read_text()
    assert "Optimised HLO" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["conv"], "operator: got 'conv'"),
        (["softmax", "--case", "1x2x3"], "case: got '1x2x3'"),
        (["softmax", "--dtype", "int8"], "dtype: got 'int8'"),
        (["softmax", "--direction", "up"], "direction: got 'up'"),
    ],
)
def test_names_are_checked_before_anything_is_compiled(arguments, named, capsys):
    pytest.importorskip("jax")
    assert command(["hlo", *arguments]) == 2
    assert named in capsys.readouterr().err
