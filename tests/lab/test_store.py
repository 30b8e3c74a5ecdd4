"""The store: round trips, errors with names, and a process killed at any moment."""

from __future__ import annotations

import json
import math
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace

import pytest

from fuselab.model import Accuracy, Group, Measurement, Proof, Status
from fuselab.storage.store import FILE_NAME, SCHEMA_VERSION, Store, StoreError

GROUP = Group("norm", "4x61", "float32", "bwd", "contiguous", "cpu", ("eager", "fast", "broken"))


def ok(impl: str, *samples: float, group: Group = GROUP, **fields) -> Measurement:
    return Measurement(group.cell(impl), Status.OK, "", "wall", samples or (1.5,), **fields)


def broken(impl: str = "broken") -> Measurement:
    return Measurement(GROUP.cell(impl), Status.CRASHED, "signal 11")


FULL = ok(
    "fast",
    *(0.1, 1 / 3, 1e-30, 1e30, math.pi),
    host_us=2 / 7,
    accuracy=Accuracy(1e-7, 3e-9, 0.5, None),
    peak_bytes=2**40 + 1,
    buffer_bytes=4096,
    ideal_bytes=123_456_789_012,
    flops=7,
    proof=Proof(
        kernels={"k<float>": 2}, graphs=1, cold=True, served={}, chosen="größer", medians_us=(0.1,)
    ),
)


def test_every_field_survives_bit_for_bit(tmp_path):
    with Store.open(tmp_path) as store:
        store.write(GROUP, [FULL, broken()])
    with Store.open_readonly(tmp_path) as store:
        assert list(store.measurements()) == [FULL, broken()]


def test_errors_that_are_not_finite_survive(tmp_path):
    accuracy = Accuracy(math.inf, math.nan, math.inf, None)
    bad = Measurement(GROUP.cell("fast"), Status.INCORRECT, "nan", accuracy=accuracy)
    with Store.open(tmp_path) as store:
        store.write(GROUP, [bad])
        (found,) = store.measurements()
    assert found.accuracy.max_abs == math.inf
    assert math.isnan(found.accuracy.rms)


def test_done_and_missing(tmp_path):
    with Store.open(tmp_path) as store:
        assert store.missing(GROUP) == GROUP.impls
        store.write(GROUP, [ok("eager"), broken()])
        assert (store.missing(GROUP), store.done(GROUP)) == (("fast",), False)
        store.write(GROUP, [ok("fast")])
        assert store.done(GROUP)
        assert not store.done(replace(GROUP, direction="fwd"))


def test_a_second_write_replaces_and_keeps_the_order(tmp_path):
    with Store.open(tmp_path) as store:
        store.write(GROUP, [ok("eager", 1.0), ok("fast", 2.0), broken()])
        store.write(GROUP, [ok("eager", 9.0)])
        assert [m.samples_us for m in store.measurements()] == [(9.0,), (2.0,), ()]


def test_a_cell_beside_the_list_is_welcome_one_of_another_group_is_not(tmp_path):
    other = replace(GROUP, case="8x32")
    with Store.open(tmp_path) as store:
        store.write(GROUP, [ok("ceiling")])
        with pytest.raises(ValueError, match="8x32"):
            store.write(GROUP, [ok("fast"), ok("fast", group=other)])
        assert [m.cell.impl for m in store.measurements()] == ["ceiling"]


def test_each_cell_points_to_its_environment(tmp_path):
    first, second = {"torch": "2.13.0", "gpu": None}, {"torch": "2.11.0", "gpu": {"sms": 132}}
    with Store.open(tmp_path) as store:
        store.write(GROUP, [broken()])
        store.set_environment(first)
        store.write(GROUP, [ok("eager")])
        store.set_environment(dict(reversed(first.items())))
        store.set_environment(second)
        store.write(GROUP, [ok("fast")])
    with Store.open_readonly(tmp_path) as store:
        old, new = store.environment()
        assert [m.environment for m in store.measurements()] == ["", old["id"], new["id"]]
    assert {**first, "id": old["id"]} == old
    assert {**second, "id": new["id"]} == new


def test_span_is_none_until_something_is_written(tmp_path):
    with Store.open(tmp_path) as store:
        assert store.span() is None
        store.write(GROUP, [ok("fast")])
        first, last = store.span()
    assert first == last
    assert first.endswith("+00:00")


def test_a_reader_sees_what_a_writer_that_is_still_open_has_stored(tmp_path):
    with Store.open(tmp_path) as writer, Store.open_readonly(tmp_path) as reader:
        writer.write(GROUP, [ok("fast")])
        assert len(list(reader.measurements())) == 1
        with pytest.raises(StoreError, match="readonly"):
            reader.write(GROUP, [ok("eager")])


def test_missing_folders_and_files(tmp_path):
    for opener in (Store.open_readonly, lambda path: Store.open(path, create=False)):
        with pytest.raises(StoreError, match=r"absent: no such folder"):
            opener(tmp_path / "absent")
        with pytest.raises(StoreError, match=f"{tmp_path.name}: not a run, it has no {FILE_NAME}"):
            opener(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(StoreError, match="file: cannot be a run's folder"):
        Store.open(tmp_path / "file")


def test_other_data_is_refused_and_left_alone(tmp_path):
    file = tmp_path / FILE_NAME
    with sqlite3.connect(file) as other:
        other.execute("CREATE TABLE cell (x)")
    other.close()
    before = file.read_bytes()
    for opener in (Store.open, Store.open_readonly):
        with pytest.raises(StoreError, match=f"{FILE_NAME}: not a run of fuselab"):
            opener(tmp_path)
    assert file.read_bytes() == before
    file.write_bytes(b"not a database" * 100)
    for opener in (Store.open, Store.open_readonly):
        with pytest.raises(StoreError, match="file is not a database"):
            opener(tmp_path)


def test_a_newer_schema_is_named(tmp_path):
    Store.open(tmp_path).close()
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.close()
    for opener in (Store.open, Store.open_readonly):
        with pytest.raises(StoreError, match=f"schema {SCHEMA_VERSION + 1}, .*newer fuselab"):
            opener(tmp_path)


def test_a_run_of_the_first_schema_is_read_as_it_is_and_renamed_when_it_is_written(tmp_path):
    with Store.open(tmp_path) as store:
        store.write(GROUP, [FULL, broken()])
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.execute('ALTER TABLE cell RENAME COLUMN "case" TO problem')
        raw.execute("PRAGMA user_version = 1")
    raw.close()
    with Store.open_readonly(tmp_path) as reader:
        assert list(reader.measurements()) == [FULL, broken()]
        with Store.open(tmp_path) as writer:
            writer.write(GROUP, [ok("eager", 2.5)])
            assert list(writer.measurements()) == [FULL, broken(), ok("eager", 2.5)]
        assert list(reader.measurements()) == [FULL, broken(), ok("eager", 2.5)]
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        assert raw.execute('SELECT DISTINCT "case" FROM cell').fetchall() == [("4x61",)]
        assert raw.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    raw.close()


def test_a_proof_of_an_older_version_is_read_by_its_names_of_now(tmp_path):
    old = {
        "operators": {"aten::mul": 2, "aten::add": 1},
        "role": "ours",
        "version": None,
        "sm_mhz": [1980, 1965],
        "note": "of no field",
    }
    with Store.open(tmp_path) as store:
        store.write(GROUP, [ok("fast")])
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.execute("UPDATE cell SET body = json_set(body, '$.proof', json(?))", [json.dumps(old)])
    raw.close()
    with Store.open_readonly(tmp_path) as store:
        (found,) = store.measurements()
    ran = {"aten::mul": 2, "aten::add": 1}
    assert found.proof == Proof(kernels=ran, launches=3, role="ours", sm_mhz=(1980, 1965))


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("proof", {"launches": "3"}, "proof.launches: got '3', expected a whole number"),
        ("proof", {"kernels": {"k": -1}}, "proof.kernels.k: got -1, expected 0 to 1e"),
        ("proof", {"throttle": "power cap"}, "proof.throttle: got 'power cap', expected a list"),
        ("proof", {"steady": 1}, "proof.steady: got 1, expected true or false"),
        ("accuracy", {"max_abs": "0"}, "accuracy.max_abs: got '0', expected a number"),
        ("counts", {"n": {"value": True}}, "counts.n.value: got True, expected a number"),
        ("hot_us", 1.0, "hot_us: got 1.0, expected a list"),
    ],
)
def test_a_field_of_another_type_is_told_by_its_name(tmp_path, field, value, told):
    with Store.open(tmp_path) as store:
        store.write(GROUP, [ok("fast")])
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        new = [f"$.{field}", json.dumps(value)]
        raw.execute("UPDATE cell SET body = json_set(body, ?, json(?))", new)
    raw.close()
    with Store.open_readonly(tmp_path) as store, pytest.raises(StoreError, match=re.escape(told)):
        list(store.measurements())


def test_a_damaged_file_is_told(tmp_path):
    file = tmp_path / FILE_NAME
    with Store.open(tmp_path) as store:
        store.write(GROUP, [ok("fast", *(i + 0.5 for i in range(4000)))])
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=FILE_NAME):
        Store.open_readonly(tmp_path)


def test_an_unreadable_record_is_told(tmp_path):
    with Store.open(tmp_path) as store:
        store.write(GROUP, [ok("fast")])
    with sqlite3.connect(tmp_path / FILE_NAME) as raw:
        raw.execute("UPDATE cell SET body = '{'")
    raw.close()
    with Store.open_readonly(tmp_path) as store, pytest.raises(StoreError, match=FILE_NAME):
        list(store.measurements())


def test_a_folder_that_nobody_can_write_to_can_be_read(tmp_path, monkeypatch):
    with Store.open(tmp_path) as store:
        store.write(GROUP, [ok("fast")])
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with Store.open_readonly(tmp_path) as store:
        assert len(list(store.measurements())) == 1
        assert [file.name for file in tmp_path.iterdir()] == [FILE_NAME]


WRITER = """
import sys
from fuselab.model import Group, Measurement, Status
from fuselab.storage.store import Store

with Store.open(sys.argv[1]) as store:
    store.set_environment({"machine": "test"})
    for number in range(100_000):
        group = Group("op", f"c{number}", "float32", "fwd", "contiguous", "cpu", ("a", "b"))
        if store.done(group):
            continue
        samples = tuple(number + 0.25 * i for i in range(300))
        store.write(group, [
            Measurement(group.cell(impl), Status.OK, "", "wall", samples) for impl in group.impls
        ])
        print(number, flush=True)
"""


def kill_a_writer(folder, after_s: float, *, wait: bool) -> set[int]:
    """Kill a writer some time after its start or first group; return what it acknowledged."""
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        first = writer.stdout.readline() if wait else ""
        time.sleep(after_s)
        writer.send_signal(signal.SIGKILL)
        lines = (first + writer.stdout.read()).split("\n")[:-1]
    assert writer.returncode == -signal.SIGKILL
    return {int(line) for line in lines}


def test_a_writer_killed_at_any_moment_loses_nothing_it_acknowledged(tmp_path):
    moments = random.Random(0)
    acknowledged: set[int] = set()
    for _ in range(20):
        new = kill_a_writer(tmp_path, moments.uniform(0, 0.03), wait=True)
        assert new
        assert not new & acknowledged, "a stored group was measured again"
        acknowledged |= new
        with Store.open_readonly(tmp_path) as store:
            found = list(store.measurements())
        cells = Counter(m.cell for m in found)
        assert set(cells.values()) == {1}
        groups = Counter(m.cell.case for m in found)
        assert set(groups.values()) == {2}, "half a group was stored"
        assert {f"c{number}" for number in acknowledged} <= set(groups)
        for measurement in found:
            number = int(measurement.cell.case[1:])
            assert measurement.samples_us == tuple(number + 0.25 * i for i in range(300))


def test_a_writer_killed_while_it_makes_the_store_leaves_one_that_opens(tmp_path):
    moments = random.Random(1)
    for attempt in range(8):
        folder = tmp_path / str(attempt)
        acknowledged = kill_a_writer(folder, moments.uniform(0.02, 0.2), wait=False)
        with Store.open(folder) as store:
            assert {f"c{n}" for n in acknowledged} <= {m.cell.case for m in store.measurements()}


@pytest.mark.parametrize(("wanted", "missing"), [("graph", ()), ("cupti", ("eager",)), ("", ())])
def test_a_cell_of_another_timer_does_not_serve(tmp_path, wanted, missing):
    with Store.open(tmp_path) as store:
        group = replace(GROUP, impls=("eager",), timer=wanted)
        store.write(group, [replace(ok("eager"), timer="graph")])
        assert store.missing(group) == missing
