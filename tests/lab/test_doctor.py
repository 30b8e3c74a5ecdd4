"""The doctor: what it finds, and what it must not tell."""

from __future__ import annotations

import getpass
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from fuselab import environment
from fuselab.commands import doctor
from fuseline.core import native
from fuseline.core.native import Native


@pytest.fixture(scope="module")
def report(lab: Any) -> Any:
    done = lab("doctor", "--device", "cpu", "--json")
    return done, json.loads(done.stdout)


def test_it_names_every_part_and_tests_the_timer(report: Any) -> None:
    items = {item["name"]: item for item in report[1]["items"]}
    assert {"binary", "torch", "triton", "C++ compiler", "nvcc", "GPU"} <= set(items)
    timer = items["timer on cpu"]
    assert timer["text"].startswith("wall: ") or timer["remedy"]
    bad = any(item["state"] == "bad" for item in items.values())
    assert report[0].returncode == int(bad)


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


def test_a_missing_binary_is_named_with_cause_and_remedy(monkeypatch: Any) -> None:
    absent = Native("missing", "no libfuseline.so in the installed package", "build it")
    monkeypatch.setattr(native, "status", lambda: absent)
    (item,) = doctor._binary()
    assert item == doctor.Item(
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
