"""fuselab explain: k breaks are reported as k, k recompilations as k, each with its line."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from fuselab.command_line.cli import command
from fuselab.explain import observe
from fuselab.explain.observe import explain
from fuselab.explain.page import write_page
from fuselab.explain.record import (
    AS_IS,
    DYNAMIC,
    MEANING,
    STATIC,
    Explanation,
    Mode,
    from_record,
)
from fuselab.explain.target import examples, load
from fuselab.explain.text import to_text
from fuselab.explain.verdict import verdicts
from fuselab.planning.plan import PlanError

FUNCTIONS = """
import torch

SIZES = (4, 6)
many_sizes_SIZES = tuple(range(3, 7))
too_many_sizes_SIZES = tuple(range(3, 15))
many_numbers_SIZES = (2, 3, 4)
kinds_SIZES = ("float32", "float64", "float16")


def inputs(size, device):
    return (torch.randn(size, 8, device=device),)


def many_numbers_inputs(size, device):
    return torch.randn(4, 8, device=device), float(size)


def kinds_inputs(size, device):
    return (torch.randn(4, 8, device=device).to(getattr(torch, size)),)


def none(x):
    return torch.softmax(x, -1) * 2


def one(x):
    y = x * 2
    print("", end="")
    return y + 1


def two(x):
    y = x * 2
    print("", end="")
    y = y + 1
    print("", end="")
    return y * 3


def three(x):
    y = x * 2
    print("", end="")
    y = y + x.sum().item()
    torch._dynamo.graph_break()
    return y * 3


def many_sizes(x):
    return x * 2


def too_many_sizes(x):
    return x * 2


def many_numbers(x, n):
    return x * 2 if n > 2.5 else x * 3


def kinds(x):
    return x * 2


def raises(x):
    return torch.mm(x, x)


def other_nan(x):
    return x.fill_(torch.nan) if torch.compiler.is_compiling() else x * 2


def same_nan(x):
    return torch.log(x - x - 1), (x - x).log()


def compiles(wrong, right):
    return wrong if torch.compiler.is_compiling() else right


def other_imaginary(x):
    return x + compiles(1j, 2j)


def other_number(x):
    return compiles(1.0, 2.0)


def other_argument(x):
    x.add_(compiles(1, 2))


def in_a_list_inputs(size, device):
    return ([torch.zeros(size)],)


def in_a_list(xs):
    return xs[0].add_(1) * 1


def with_gaps_inputs(size, device):
    return (torch.randn(size, 8)[:, ::3],)


def with_gaps(x):
    return x.view(-1)


def a_generator(x):
    yield x * 2


def one_tensor_inputs(size, device):
    return torch.randn(size, 8)


def one_tensor(x):
    return x


def with_a_temporary(x):
    return x.repeat(1000, 1).sum()


def by_itself(x):
    return torch.compile(torch.nn.ReLU(), backend="eager")(x)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("explain") / "functions.py"
    path.write_text(FUNCTIONS)
    return path


def of(file: Path, name: str, backend: str = "eager") -> Explanation:
    return explain(load(file, name, "cpu"), "cpu", backend)


def modes(found: Explanation) -> dict[str, Mode]:
    return {mode.name: mode for mode in found.modes}


@pytest.mark.parametrize(("name", "k"), [("none", 0), ("one", 1), ("two", 2), ("three", 3)])
def test_k_breaks_of_one_size_are_k(file: Path, name: str, k: int) -> None:
    target = load(file, name, "cpu")
    alone = type(target)(name, target.function, target.inputs, target.sizes[:1], target.place)
    found = modes(explain(alone, "cpu", "eager"))
    assert len(found[STATIC].breaks) == k
    assert len(found[DYNAMIC].breaks) == k
    assert found[AS_IS].breaks == ()
    assert found[STATIC].recompiles == ()


@pytest.mark.parametrize(
    ("name", "k"), [("none", 1), ("many_sizes", 3), ("too_many_sizes", 7), ("kinds", 2)]
)
def test_k_recompilations_are_k(file: Path, name: str, k: int) -> None:
    found = modes(of(file, name))
    assert len(found[STATIC].recompiles) == k
    assert found[STATIC].breaks == ()
    assert all(" because of " in text for text in found[STATIC].recompiles)


def test_any_size_is_compiled_once(file: Path) -> None:
    assert modes(of(file, "too_many_sizes"))[DYNAMIC].recompiles == ()


def test_a_number_of_pythons_is_compiled_for_each_side_of_a_branch(file: Path) -> None:
    assert len(modes(of(file, "many_numbers"))[STATIC].recompiles) >= 1


def test_past_the_limit_compiled_is_eager(file: Path) -> None:
    found = of(file, "too_many_sizes")
    (limit,) = set(modes(found)[STATIC].limits)
    assert limit.startswith("too_many_sizes (functions.py:")
    assert any('"compiled" is eager' in line for line in verdicts(found))
    assert modes(found)[DYNAMIC].limits == ()


def test_a_break_has_the_users_line_and_a_hint(file: Path) -> None:
    (broken, *_) = modes(of(file, "one"))[STATIC].breaks
    line = 1 + FUNCTIONS.splitlines().index("def one(x):") + 2
    assert broken.place.startswith(f"functions.py:{line} in one")
    assert 'print("", end="")' in broken.place
    assert "print" in broken.reason
    assert "reorderable_logging_functions" in broken.hint


def test_what_raises_is_told_with_its_message(file: Path) -> None:
    found = of(file, "raises")
    (mode,) = found.modes
    assert mode.error.startswith("RuntimeError: ")
    assert any("raises" in line for line in verdicts(found))


def test_a_nan_of_one_side_is_a_difference_and_of_both_is_none(file: Path) -> None:
    found = modes(of(file, "other_nan"))
    assert [size.difference for size in found[STATIC].sizes] == [math.inf, math.inf]
    assert [size.difference for size in modes(of(file, "same_nan"))[STATIC].sizes] == [0.0, 0.0]


@pytest.mark.parametrize("name", ["other_imaginary", "other_number", "other_argument"])
def test_what_differs_is_seen_whatever_it_is(file: Path, name: str) -> None:
    assert all((size.difference or 0) > 0.01 for size in modes(of(file, name))[STATIC].sizes)


def test_every_call_has_arguments_of_its_own_of_the_same_layout(file: Path) -> None:
    assert [size.difference for size in modes(of(file, "in_a_list"))[STATIC].sizes] == [0.0, 0.0]
    (mode,) = of(file, "with_gaps").modes
    assert "view size is not compatible" in mode.error


def test_what_is_never_compiled_is_said_so(file: Path) -> None:
    said = verdicts(of(file, "a_generator"))
    assert "static: nothing is compiled; 0 kernels a call" in said


def test_the_peak_has_what_is_given_back_within_the_call(file: Path) -> None:
    peak = modes(of(file, "with_a_temporary"))[AS_IS].peak
    assert 4 * 6 * 8 * 1000 <= peak < 2 * 4 * 6 * 8 * 1000


def test_a_file_has_its_neighbours_and_may_be_called_like_a_librarys(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_copy.py").write_text("TWO = 2\n")
    text = "import torch\nfrom neighbour_of_copy import TWO\nSIZES = (3,)\n"
    text += "def inputs(size, device): return (torch.ones(size),)\ndef f(x): return x * TWO\n"
    (tmp_path / "copy.py").write_text(text)
    assert modes(of(tmp_path / "copy.py", "f"))[STATIC].error == ""
    # A process that is spawned, or torch, imports Python's own from then on.
    assert sys.path.index(str(tmp_path)) > sys.path.index(sysconfig.get_path("stdlib"))


def test_inputs_that_are_no_tuple_are_named(file: Path) -> None:
    with pytest.raises(PlanError, match=r"inputs\(4, 'cpu'\) .*: got Tensor, expected a tuple"):
        of(file, "one_tensor")


def test_what_compiles_by_itself_shows_that_as_it_is(file: Path) -> None:
    assert modes(of(file, "by_itself"))[AS_IS].compiles


def test_a_record_comes_back_as_it_was(file: Path) -> None:
    found = of(file, "one")
    assert from_record(json.loads(json.dumps(found.to_record()))) == found


def test_the_shipped_examples_are_those_of_the_seed_and_the_blocks() -> None:
    assert set(examples()) == {
        "many_sizes",
        *("compiled_inside", "made_inside", "compiled_once"),
        "attention_pytorch",
        *("naive_softmax", "compiled_naive_softmax", "nn_softmax", "compiled_nn_softmax"),
        "torch_softmax",
        *("mlp_block", "attention_block", "norm_residual"),
    }


@pytest.mark.parametrize("name", ["mlp_block", "attention_block", "norm_residual"])
def test_a_shipped_block_has_one_graph(name: str) -> None:
    found = of(examples()[name], name)
    assert all(size.difference == 0 for size in modes(found)[STATIC].sizes)
    assert modes(found)[STATIC].breaks == ()


# The answer of the process is known: only what is written of it is the test's.
ANSWERED = """
import json, pathlib, sys
from fuselab.command_line import cli
from fuselab.processes import child
answer = {"found": json.loads(pathlib.Path(sys.argv.pop()).read_text())}
child.ask = lambda *_: ([answer], "")
sys.exit(cli.command(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("plain_compiler")
def test_the_command_has_a_process_of_its_own_and_a_page_in_a_locale_of_ascii(
    file: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}.items():
        monkeypatch.setenv(name, value)
    arguments = [f"{file}:one", "--json", "--device", "cpu", "--out", str(tmp_path / "new")]
    assert command(["explain", *arguments]) == 0
    said = capfd.readouterr().out
    record: dict[str, Any] = json.loads(said)
    found = from_record(record)
    assert len(modes(found)[STATIC].breaks) == 2, "one for each of two sizes"
    assert modes(found)[AS_IS].kernels == {"eager": ("mul", "add")}
    assert modes(found)[STATIC].kernels == {"compiled": ("mul", "add")}
    assert modes(found)[STATIC].graphs == 2
    assert modes(found)[STATIC].phases["code generation and its compiler"] > 0
    assert all(size.difference == 0 for size in modes(found)[STATIC].sizes)
    page = (tmp_path / "new" / "explain-one.html").read_text()
    assert "Graph break 1" in page
    assert "src=" not in page

    (tmp_path / "said").write_text(said)
    again = [*arguments, str(tmp_path / "said")]
    again.remove("--json")
    done = subprocess.run(
        [sys.executable, "-c", ANSWERED, "explain", *again], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"break" in done.stdout
    assert done.stdout.isascii()
    assert (tmp_path / "new" / "explain-one.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("nowhere", 2, ["FUNCTION", "'nowhere'", "attention_pytorch"]),
        ("no/such.py:f", 2, ["FUNCTION", "no/such.py:f"]),
        ("alone.py:absent", 2, ["FUNCTION", "no function 'absent'"]),
        ("alone.py:alone", 2, ["FUNCTION", "needs inputs(size, device) and SIZES"]),
    ],
)
def test_errors_name_what_came(
    function: str,
    code: int,
    words: list[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "alone.py").write_text("def alone(x):\n    return x\n")
    monkeypatch.chdir(tmp_path)
    assert command(["explain", function, "--device", "cpu"]) == code
    message = capfd.readouterr().err
    assert all(word in message for word in words), message


def test_a_process_that_takes_too_long_or_dies_is_an_error(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import os\nSIZES = (1,)\ninputs = lambda *_: ()\ndef f():\n    os._exit(7)\n")
    assert command(["explain", f"{bad}:f", "--device", "cpu"]) == 1
    assert "code 7" in capfd.readouterr().err
    bad.write_text("import time\ntime.sleep(60)\n")
    assert command(["explain", f"{bad}:f", "--device", "cpu", "--timeout", "2"]) == 1
    assert "after 2 s" in capfd.readouterr().err


def busy(disturbance: str) -> type:
    class Load:
        def __init__(self, threads: int | None) -> None:
            self.disturbance = disturbance

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    return Load


def test_times_taken_beside_others_work_are_noisy_in_text_record_and_page(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observe, "OtherLoad", busy("others were <busy>"))
    found = of(file, "none")
    assert all(s.noise.startswith("others were <busy>") for m in found.modes for s in m.sizes)
    assert verdicts(found)[0].startswith("6 of 6 times are noisy: others were <busy>")
    assert to_text(found).count("; noisy: others were <busy>") == 6
    assert "others were <busy>" in found.to_record()["modes"][0]["sizes"][0]["noise"]
    page = write_page(found, tmp_path).read_text()
    assert page.count("<small>noisy: others were &lt;busy&gt;") == 6
    assert "6 of 6 times are noisy" in page


@pytest.mark.parametrize(("seconds", "wide"), [((1e-4,), False), ((1e-4, 3e-4, 9e-4), True)])
def test_times_that_scatter_are_noisy_and_others_are_not(
    seconds: tuple[float, ...], wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = itertools.cycle(seconds)
    monkeypatch.setattr(observe, "OtherLoad", busy(""))
    monkeypatch.setattr(observe, "_timed", lambda *_: (next(given), None))
    monkeypatch.setattr(observe, "LATER_S", 0.0)
    noise = observe._times(print, (), "cpu")[3]
    assert noise.startswith("the median is known to") if wide else not noise


def test_the_modes_are_explained(file: Path, tmp_path: Path) -> None:
    found = of(file, "none")
    page = write_page(found, tmp_path).read_text()
    for meaning in MEANING.values():
        assert meaning in to_text(found)
        assert meaning in page
