"""The notebook's part: plain functions in this process, the table, and the session around it."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor

import fuselab
from fuselab import Results
from fuselab.model import Status
from fuselab.notebook import measure, session
from fuselab.notebook.results import ISOLATION
from fuselab.records.metrics import COLUMNS
from fuselab.worker.implementations import baselines
from fuselab.worker.protocol import Fatal
from fuseline.core.specs.spec import Budget

SHAPES = [(4, 33), (2, 3, 16)]
NASTY = "<script>alert(1)</script>"


def eager(x: Tensor, scale: float) -> Tensor:
    return x * torch.sigmoid(x) * scale


def right(x: Tensor, scale: float) -> Tensor:
    return torch.nn.functional.silu(x) * scale


def wrong(x: Tensor, scale: float) -> Tensor:
    return x * scale


def raises(x: Tensor, scale: float) -> Tensor:
    raise ValueError("<b>no such tile</b>")


def overwrites(x: Tensor, scale: float) -> Tensor:
    return x.mul_(torch.sigmoid(x)).mul_(scale)


def starves(x: Tensor, scale: float) -> Tensor:
    raise MemoryError("64 TiB wanted")


def settles(x: Tensor, scale: float) -> Tensor:
    y = right(x, scale)
    torch.set_default_dtype(torch.float64)
    os.environ["LEFT_BEHIND"] = "1"
    gc.disable()
    return y


def draw(shape: Any, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, float]:
    return torch.randn(shape, dtype=dtype, device=device), 1.5


def single(shape: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, dtype=dtype, device=device)


def compare(impls: Any, make: Any = single, shapes: Any = ((4, 33),), **more: Any) -> Results:
    return fuselab.compare(impls, make, shapes=shapes, device="cpu", **more)


def state() -> dict[str, Any]:
    return {
        "environment": dict(os.environ),
        "gc": gc.isenabled(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "dtype": torch.get_default_dtype(),
        "random": torch.get_rng_state().tolist(),
        "compilers": torch._inductor.config.compile_threads,
        "folder": os.getcwd(),
    }


def by_name(found: Results, **wanted: str) -> dict[str, dict[str, Any]]:
    return {
        row["impl"]: row
        for row in found.records
        if all(row[key] == value for key, value in wanted.items())
    }


@pytest.fixture(scope="module")
def mixed() -> tuple[Results, dict[str, Any], dict[str, Any]]:
    """Return what came of good and bad functions, and the session before and after it."""
    gc.disable()
    try:
        before = state()
        impls = {"first": eager, NASTY: raises, "overwrites": overwrites, "settles": settles}
        with torch.no_grad():
            found = compare({**impls, "right": right, "wrong": wrong}, draw, SHAPES)
        return found, before, state()
    finally:
        gc.enable()


@pytest.mark.parametrize("case", ["(4, 33)", "(2, 3, 16)"])
def test_every_function_has_its_row_in_every_case(mixed: Any, case: str) -> None:
    rows = by_name(mixed[0], case=case)
    bad = {NASTY: "error", "overwrites": "invalid", "settles": "invalid", "wrong": "incorrect"}
    good = dict.fromkeys(("first", "right", "ceiling"), "ok")
    assert {name: row["status"].replace("noisy", "ok") for name, row in rows.items()} == bad | good
    assert all(tuple(row) == COLUMNS for row in rows.values())
    first, other = rows["first"], rows["right"]
    x = 4 * (132 if case == "(4, 33)" else 96)
    assert other["ideal_bytes"] == 2 * x
    assert other["buffer_bytes"] == x + other["peak_bytes"] >= 2 * x
    good = first["status"] == other["status"] == "ok"
    ratio = first["median_us"] / other["median_us"]
    assert other["speedup_vs_eager"] == (ratio if good else None)
    assert first["role"] == "eager"
    assert first["launches"] == 3
    assert 0 < other["max_ulp"] < 4
    ceiling = rows["ceiling"]["status"]
    assert (other["ceiling_share"] or 0) > 0 or "noisy" in (ceiling, other["status"])


def test_a_function_that_fails_says_why(mixed: Any) -> None:
    rows = by_name(mixed[0], case="(4, 33)")
    reason = rows[NASTY]["reason"]
    assert re.fullmatch(
        r"test_notebook.py:\d+: ValueError: <b>no such tile</b> \(during forward\)", reason
    )
    assert rows["overwrites"]["reason"] == "overwrote its input x"
    assert "float32 became torch.float64" in rows["settles"]["reason"]
    assert "out0: error" in rows["wrong"]["reason"]


def test_the_session_is_as_before(mixed: Any) -> None:
    _, before, after = mixed
    assert after == before


def test_an_interruption_leaves_the_session_as_before() -> None:
    def interrupts(x: Tensor, scale: float) -> Tensor:
        settles(x, scale)
        raise KeyboardInterrupt

    before = state()
    with pytest.raises(KeyboardInterrupt):
        compare({"a": eager, "b": interrupts}, draw)
    assert state() == before


def test_the_text_has_numbers_reasons_and_the_missing_isolation(mixed: Any) -> None:
    text = repr(mixed[0])
    assert str(mixed[0]) == text
    assert text.endswith(ISOLATION)
    assert "forward, float32; us of wall time, speedup over first:" in text
    lines = [line for line in text.splitlines() if "| right " in line]
    assert len(lines) == 2
    assert f"{by_name(mixed[0], case='(4, 33)')['right']['median_us']:.3f}" in lines[0]
    assert ": ValueError: <b>no such tile</b> (during forward)" in text


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[Any] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[Any]) -> None:
        self.tags.append(tag)
        self.links += [name for name, _ in attrs if name in ("src", "href") or name[:2] == "on"]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_escapes_names_and_reasons_and_loads_nothing(mixed: Any) -> None:
    page = Page(mixed[0]._repr_html_())
    assert not {"script", "b", "link", "img"} & set(page.tags)
    assert page.links == []
    assert NASTY in page.words
    assert "ValueError: <b>no such tile</b>" in "".join(page.words)
    assert ISOLATION in page.words
    assert page.tags.count("tr") == 1 + 2 * 6


def test_the_backward_is_checked_and_timed() -> None:
    def half(x: Tensor, scale: float) -> Tensor:
        return right(x, scale).detach() + right(x, scale) / 2 - right(x, scale).detach() / 2

    rows = by_name(compare({"eager": eager, "right": right, "half": half}, draw, directions="bwd"))
    assert rows["right"]["median_us"] > 0
    assert rows["right"]["ideal_bytes"] == 3 * 4 * 132
    assert rows["half"]["status"] == "incorrect"
    assert rows["half"]["reason"].startswith("x: error")


def test_gradients_are_those_of_the_inputs_that_require_them() -> None:
    def make(shape: Any, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
        x = torch.randn(shape, dtype=dtype, requires_grad=True)
        return {"x": x, "mask": torch.ones(shape, dtype=dtype), "bias": 1}

    def masked(x: Tensor, mask: Tensor, bias: int) -> Tensor:
        return (x + bias) * mask.detach()

    found = compare({"only": masked}, make, directions=("bwd",))
    assert by_name(found)["only"]["median_us"] > 0, repr(found)


def test_a_reference_decides_what_is_right() -> None:
    impls = {"a": lambda x: x * 2, "b": lambda y: y * 3}
    assert {n: r["status"] for n, r in by_name(compare(impls)).items()}["b"] == "incorrect"
    seen: list[torch.dtype] = []

    def three(x: Tensor) -> Tensor:
        seen.append(x.dtype)
        return x.mul_(3)

    rows = by_name(compare(impls, reference=three))
    assert rows["a"]["status"] == "incorrect"
    assert rows["b"]["median_us"] > 0
    assert torch.float64 in seen


def test_a_reference_that_fails_is_named() -> None:
    def only_float32(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            raise TypeError("no kernel")
        return x

    rows = by_name(compare({"mine": only_float32, "b": lambda x: x + 0}))
    for name in ("mine", "b"):
        assert rows[name]["status"] == "error"
        assert "the reference ('mine') raised TypeError: no kernel" in rows[name]["reason"]


def test_limits_are_those_of_baselines_unless_given() -> None:
    impls = {"eager": lambda x: x + 1, "rough": lambda x: (x + 1) * (1 + 2**-20)}
    assert by_name(compare(impls))["rough"]["median_us"] > 0
    assert by_name(compare(impls, budget=Budget()))["rough"]["status"] == "incorrect"


def test_compile_is_a_row_made_from_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def quickly(fn: Callable[..., Any], device_type: str) -> Any:
        return torch.compile(fn, backend="eager", fullgraph=True, dynamic=False)

    monkeypatch.setattr(baselines, "_compile", quickly)
    row = by_name(compare({"a": eager}, draw, compile=True))["compile"]
    assert (row["role"], row["graphs"], row["recompiles"]) == ("baseline", 1, 0)


def test_inputs_are_drawn_anew_and_alike_in_a_second_run() -> None:
    def run() -> list[float]:
        drawn: list[float] = []

        def make(
            shape: Any, dtype: torch.dtype, device: torch.device, generator: torch.Generator
        ) -> Tensor:
            x = torch.randn(shape, dtype=dtype, generator=generator)
            drawn.append(float(x.sum()))
            # Who draws by torch.manual_seed gets numbers that no generator of the lab's gives.
            assert float(torch.randn(shape, dtype=dtype).sum()) != drawn[-1]
            return x

        compare({"a": lambda x: x + 1}, make)
        return drawn

    one, other = run(), run()
    assert len(set(one)) > 10
    # The learning call and the first set; what follows nobody can foresee.
    assert one[:2] == other[:2]
    assert one[-1] != other[-1]


def test_arguments_beyond_the_names_are_not_lost() -> None:
    def make(shape: Any, dtype: torch.dtype, device: torch.device) -> list[Any]:
        return [torch.randn(shape, dtype=dtype), 2.0, 3.0, 4.0]

    found = by_name(
        compare({"a": lambda arg1, *rest: arg1 * sum(rest), "b": lambda x, y, z, dy0: x * 9}, make)
    )
    assert found["b"]["median_us"] > 0, found["b"]["reason"]


def test_a_process_that_is_no_longer_sane_measures_nothing_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lost(*_: Any) -> str:
        return "cpu is lost"

    monkeypatch.setattr(session, "probe", lost)
    rows = by_name(compare({"a": eager, "b": starves}, draw))
    assert rows["b"]["status"] == "out_of_memory"
    assert rows["a"]["status"] == "crashed"
    assert rows["a"]["reason"] == "not run: cpu is lost"


def test_an_error_of_the_device_without_a_name_costs_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fatal(*_: Any) -> None:
        raise Fatal("", Status.OUT_OF_MEMORY, "the inputs")

    monkeypatch.setattr(measure.pipeline, "run", fatal)
    rows = by_name(compare({"a": eager, "b": right}, draw))
    assert {row["status"] for row in rows.values()} == {"out_of_memory"}


@pytest.mark.parametrize(
    ("error", "text", "impls", "more"),
    [
        (TypeError, "impls: got list", [eager], {}),
        (ValueError, "impls: got no function", {}, {}),
        (TypeError, "impls: 'a' is NoneType", {"a": None}, {}),
        (TypeError, "impls: got the name 3", {3: eager}, {}),
        (ValueError, "impls: got the name 'compile'", {"compile": eager}, {}),
        (TypeError, "make_inputs: got Tensor", {"a": eager}, {"make": torch.ones(3)}),
        (ValueError, "make_inputs: returned no tensor", {"a": eager}, {"make": lambda *_: (1,)}),
        (ValueError, "make_inputs: returned a NoneType", {"a": eager}, {"make": print}),
        (ValueError, "make_inputs: raised TypeError", {"a": eager}, {"make": lambda shape: shape}),
        (
            ValueError,
            "make_inputs: returned torch.float64, expected the dtype given",
            {"a": eager},
            {"make": lambda *_: torch.ones(3, dtype=torch.float64)},
        ),
        (
            ValueError,
            "make_inputs: x is on meta, expected cpu",
            {"a": eager},
            {"make": lambda *_: torch.ones(3, device="meta")},
        ),
        (
            ValueError,
            "make_inputs: xs is a list of tensors",
            {"a": eager},
            {"make": lambda *_: {"x": torch.ones(3), "xs": [torch.ones(3)]}},
        ),
        (ValueError, "shapes: got none", {"a": eager}, {"shapes": []}),
        (ValueError, "shapes: got 4 twice", {"a": eager}, {"shapes": [4, 4]}),
        (TypeError, "shapes: got 4", {"a": eager}, {"shapes": 4}),
        (ValueError, "dtypes: got 'float33', expected one of", {"a": eager}, {"dtypes": "float33"}),
        (ValueError, "dtypes: got 'int64'", {"a": eager}, {"dtypes": [torch.int64]}),
        (ValueError, "directions: got 'back'", {"a": eager}, {"directions": "back"}),
        (
            ValueError,
            "directions: got 'bwd', but make_inputs returns no floating",
            {"a": eager},
            {"directions": "bwd", "make": lambda *_: torch.ones(3, dtype=torch.int64)},
        ),
        (TypeError, "reference: got int", {"a": eager}, {"reference": 3}),
        (ValueError, "precision: got 'best', expected one of: quick", {}, {"precision": "best"}),
        (ValueError, "precision: got 'publish', which takes two", {}, {"precision": "publish"}),
    ],
)
def test_a_bad_argument_is_named_before_anything_runs(
    error: type[Exception], text: str, impls: Any, more: dict[str, Any]
) -> None:
    ran: list[str] = []
    if "precision" in more:
        impls = {"a": lambda x: ran.append("a")}
    with pytest.raises(error, match=text.replace("(", r"\(")):
        compare(impls, **more)
    assert not ran


def test_an_unknown_device_is_named() -> None:
    with pytest.raises(ValueError, match="device: got 'tpu', expected one of: cpu"):
        fuselab.compare({"a": eager}, draw, shapes=[3], device="tpu")


def test_importing_the_lab_loads_no_torch_and_asking_for_it_sets_nothing() -> None:
    code = (
        "import os, sys, fuselab; assert 'torch' not in sys.modules; before = dict(os.environ);"
        "assert callable(fuselab.compare); assert dict(os.environ) == before;"
        "assert not hasattr(fuselab, 'no_such_name')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
