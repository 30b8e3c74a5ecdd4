"""The doctor: what it finds, and what it must not tell."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fuseline
from fuselab import environment
from fuselab.commands.measuring import doctor, selftest
from fuselab.machine import roofs
from fuselab.worker.device import roofs as measured_roofs
from fuseline.core import native
from fuseline.core.native import Native
from fuseline.core.registration.overrides import Override
from fuseline.core.specs.spec import Cost
from fuseline.takeover import Status


@pytest.fixture(scope="module")
def report(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        done = lab("doctor", "--device", "cpu", "--json")
        yield done, json.loads(done.stdout)


def test_it_names_every_part_and_tests_the_timer(report: Any) -> None:
    items = {item["name"]: item for item in report[1]["items"]}
    assert {"binary", "torch", "triton", "C++ compiler", "nvcc", "GPU", "counters"} <= set(items)
    assert "with slope" in items["timer wall"]["text"]
    assert "a copy beside the same copy" in items["same again"]["text"]
    bad = any(item["state"] == "bad" for item in items.values())
    assert report[0].returncode == int(bad)


def test_it_measures_the_roofs_and_keeps_them(report: Any) -> None:
    if "roofs" not in report[1]:
        assert any(item["name"] == "roofs" for item in report[1]["items"]), "neither roofs nor why"
        pytest.skip("others kept the cores busy: doctor keeps nothing then")
    found = report[1]["roofs"]
    assert set(found["memory"]) == {"1R0W", "1R1W", "2R1W", "3R1W"}
    for sizes in found["memory"].values():
        assert list(sizes) == [str(1 << n) for n in (20, 22, 24, 26, 28)]
        assert all(0.1 < gbps < 10_000 for by in sizes.values() for gbps in by.values())
    assert set(found["compute"]) == {"bfloat16 matmul 512", "float32 matmul 1024",
                                     "float64 matmul 512"}  # fmt: skip
    kept = roofs.load(report[1]["environment"])
    assert kept is not None
    assert kept.peak("float32") == (found["compute"]["float32 matmul 1024"], "float32 matmul 1024")
    assert kept.peak("int8") is None
    assert kept.memory == found["memory"]


SPEEDS = {"1R1W": {"1048576": {"torch": 12.5}}}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize("where", ["memory", "compute"])
def test_what_is_no_speed_is_neither_kept_nor_taken(speed: float, where: str, cache: None) -> None:
    memory = {"1R1W": {"1048576": {"torch": speed if where == "memory" else 3.0}}}
    found = {"memory": memory, "compute": {"float32 fma": speed if where == "compute" else 3.0}}
    with pytest.raises(ValueError, match="expected finite numbers above 0"):
        roofs.save({"cpu": "one"}, found)
    assert roofs.load({"cpu": "one"}) is None
    file = roofs._place({"cpu": "one"})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**found, "measured_at": "today"}))
    assert roofs.load({"cpu": "one"}) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"memory": 1, "compute": {}}', "\x00"])
def test_a_file_that_holds_no_roofs_is_none(text: str, cache: None) -> None:
    file = roofs._place({})
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    assert roofs.load({}) is None


def fake_race(monkeypatch: pytest.MonkeyPatch, disturbances: list[str], us: float = 10.0) -> list:
    left = list(disturbances)

    def race(trials: Any, *_: object) -> Any:
        reason = left.pop(0)
        readings = {t.name: SimpleNamespace(samples_us=(us, us)) for t in trials}
        return SimpleNamespace(readings=readings, disturbance={t.name: reason for t in trials})

    monkeypatch.setattr(measured_roofs, "race", race)
    return left


def test_a_roof_is_measured_again_while_others_disturb_it(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = measured_roofs._trial(torch.device("cpu"), "x", lambda *_: [], Cost(1, 1, 1))
    left = fake_race(monkeypatch, ["busy", "busy", "", "never"])
    assert measured_roofs._times([trial], trial.cell.device, 1, print) == {"x": 10.0}
    assert left == ["never"]
    fake_race(monkeypatch, ["busy"] * 3)
    with pytest.raises(measured_roofs.Disturbed, match="busy"):
        measured_roofs._times([trial], trial.cell.device, 1, print)
    fake_race(monkeypatch, [""], us=0.0)
    with pytest.raises(measured_roofs.Disturbed, match="no time"):
        measured_roofs._times([trial], trial.cell.device, 1, print)


def test_a_disturbed_doctor_says_so_and_keeps_what_was_there(cache: None) -> None:
    good = roofs.save({}, {"memory": SPEEDS, "compute": {}})
    found = {"timers": {}, "no_kernels": "", "again": {"error": "x"}, "load": "busy"}
    items = {i.name: i for i in selftest.findings("cpu", {**found, "disturbed": "busy too"})}
    assert (items["load"].state, items["load"].text) == ("note", "busy")
    assert items["roofs"].text == "not measured, and none kept: busy too"
    assert doctor._kept({}, {**found, "disturbed": "busy too"}) is None
    assert roofs.load({}) == good


def test_a_slow_roof_is_not_printed_as_zero() -> None:
    slow = roofs.Roofs({"1R1W": {"1048576": {"torch": 0.25}}}, {"float32 fma": 3e9}, "today")
    assert "0.25" in selftest.tables(slow)
    assert "0.003 TFLOP/s" in selftest.tables(slow)


def test_roofs_of_another_device_are_not_taken(report: Any) -> None:
    assert roofs.load(report[1]["environment"] | {"cpu": "another"}) is None


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ({"slope": 1.009, "offset_us": 3.0}, "ok"),
        ({"slope": 0.98, "offset_us": 0.0}, "bad"),
        ({"error": "CUPTI lost the last marker"}, "bad"),
    ],
)
def test_a_timer_that_reads_another_length_is_bad(line: Any, state: str) -> None:
    item = selftest._timer("cupti", {"lengths_us": (20, 1000), **line})
    assert item.state == state
    assert bool(item.remedy) == (state == "bad")


@pytest.mark.parametrize(
    ("verdict", "state"),
    [("same", "ok"), ("unknown", "note"), ("slower", "bad"), ("faster", "bad")],
)
def test_a_copy_that_differs_from_itself_is_bad(verdict: str, state: str) -> None:
    found = {"verdict": verdict, "reason": "", "ratio": 1.04}
    assert selftest._again(found).state == state


def test_the_environment_tells_the_machine_and_not_its_owner(report: Any) -> None:
    facts = report[1]["environment"]
    assert {"cpu", "cores", "python", "torch", "kernel", "variables"} <= set(facts)
    told = json.dumps(facts)
    assert str(Path.home()) not in told
    assert socket.gethostname() not in told.split('"')
    assert getpass.getuser() not in told.split('"')


def test_variables_keep_settings_and_hide_paths(monkeypatch: Any) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(Path.home() / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    variables = environment.collect("cpu")["variables"]
    assert variables["TRITON_CACHE_DIR"] == "(a path)"
    assert variables["OMP_NUM_THREADS"] == "2"
    assert "SECRET_TOKEN" not in variables


def test_the_environment_names_what_native_ran_on(monkeypatch: Any) -> None:
    assert not {"native", "native_packages"} & environment.collect("cpu").keys()
    by = "torch's cutedsl 4.5.2"
    others = [Override("_fused_rms_norm", device, by, above=False) for device in ("cpu", "cuda")]
    monkeypatch.setattr(fuseline, "status", lambda: Status((), overridden=tuple(others)))
    monkeypatch.setattr(environment, "version", {"nvidia-cutlass-dsl": "4.5.2"}.get)
    monkeypatch.setenv("TORCH_NATIVE_SKIP_VERSION_CHECK", "1")
    monkeypatch.setenv("TORCH_DISABLE_NATIVE_JIT", "0")
    facts = environment.collect("cpu")
    assert facts["native"] == [f"aten::_fused_rms_norm by {by}"]
    assert facts["native_packages"] == {"nvidia-cutlass-dsl": "4.5.2"}
    names = {"TORCH_NATIVE_SKIP_VERSION_CHECK", "TORCH_DISABLE_NATIVE_JIT"}
    assert names <= facts["variables"].keys()


def test_the_code_of_an_operator_is_that_of_all_rooms_of_core(
    tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "core" / "selection" / "select.py"
    file.parent.mkdir(parents=True)
    file.write_text("first = True")
    monkeypatch.setattr(native, "__file__", str(tmp_path / "core" / "native.py"))
    before = environment.code("softmax", "", tables=False)
    assert environment.code("softmax", "", tables=False) == before
    file.write_text("first = False")
    assert environment.code("softmax", "", tables=False) != before


def test_a_missing_binary_is_named_with_cause_and_remedy(monkeypatch: Any) -> None:
    absent = Native("missing", "no libfuseline.so in the installed package", "build it")
    monkeypatch.setattr(native, "status", lambda: absent)
    (item,) = doctor._binary()
    assert item == selftest.Item(
        "binary", "note", "missing: no libfuseline.so in the installed package", "build it"
    )


@pytest.mark.parametrize(
    ("version", "state"), [("580.65.06", "ok"), ("590.1", "ok"), ("575.57.08", "bad")]
)
def test_the_driver_floor(version: str, state: str, monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor.torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(environment, "driver", lambda: version)
    (_, driver) = doctor._driver()
    assert driver.state == state
    assert version in driver.text
    assert "580" in driver.text
